"""The Qwen2 architecture in plain PyTorch, with Hugging Face's and vLLM's parameter names.

We write our own modules for two reasons: training compiles the whole model into one graph, and
sampling needs a key-value cache whose rows grow at different speeds. `export.py` checks that the
logits agree with transformers' Qwen2.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelConfig:
    """The shape of a model."""

    hidden: int = 128
    layers: int = 4
    heads: int = 4
    ffn: int = 384
    vocab: int = 1024
    max_positions: int = 1024
    rope_theta: float = 10_000.0
    eps: float = 1e-6

    @property
    def head_dim(self) -> int:
        """Width of an attention head."""
        return self.hidden // self.heads


GENERATOR = ModelConfig(hidden=128, layers=5, heads=4, ffn=384)
VERIFIER = ModelConfig(hidden=256, layers=8, heads=8, ffn=384)


class Past(NamedTuple):
    """One layer's cache and where the new tokens go in it."""

    keys: Tensor
    """(batch, heads, capacity, head_dim)."""

    values: Tensor
    """(batch, heads, capacity, head_dim)."""

    positions: Tensor
    """(batch, length): the position that each new token is written to."""

    mask: Tensor
    """(batch, 1, length, span): True where a new token may attend."""

    is_real: Tensor
    """(batch, length): False for padding."""


@dataclass(slots=True)
class Cache:
    """The key-value cache of all layers."""

    keys: Tensor
    """(layers, batch, heads, capacity, head_dim)."""

    values: Tensor
    """(layers, batch, heads, capacity, head_dim)."""

    lengths: Tensor
    """(batch,): tokens stored in each row."""

    def select(self, rows: Tensor, room: int) -> Cache:
        """Copy the given rows, in that order, with capacity for `room` more tokens.

        A row may be given more than once. The capacity is no larger than needed, because copying
        costs as much as decoding.
        """
        lengths = self.lengths[rows]
        used = int(lengths.max())

        def copy_rows(old: Tensor) -> Tensor:
            layers, _, heads, _, dim = old.shape
            new = old.new_zeros(layers, len(rows), heads, used + room, dim)
            new[..., :used, :] = old[:, rows, :, :used]
            return new

        return Cache(copy_rows(self.keys), copy_rows(self.values), lengths)


def build_rope_tables(config: ModelConfig) -> tuple[Tensor, Tensor]:
    """Return cosines and sines, each (max_positions, head_dim)."""
    inverse = config.rope_theta ** (
        -torch.arange(0, config.head_dim, 2, dtype=torch.float32) / config.head_dim
    )
    angles = torch.arange(config.max_positions, dtype=torch.float32)[:, None] * inverse[None]
    angles = torch.cat([angles, angles], dim=-1)
    return angles.cos(), angles.sin()


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Apply rotary positions to x (batch, heads, length, head_dim); cos and sin broadcast to it."""
    first, second = x.chunk(2, dim=-1)
    return x * cos + torch.cat([-second, first], dim=-1) * sin


class RMSNorm(nn.Module):
    """Root-mean-square norm in fp32."""

    def __init__(self, width: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        """x: (..., width)."""
        x32 = x.float()
        return (x32 * torch.rsqrt(x32.pow(2).mean(-1, keepdim=True) + self.eps)) * self.weight


class Attention(nn.Module):
    """Causal self-attention with biases on queries, keys and values."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.heads, self.head_dim = config.heads, config.head_dim
        self.q_proj = nn.Linear(config.hidden, config.hidden)
        self.k_proj = nn.Linear(config.hidden, config.hidden)
        self.v_proj = nn.Linear(config.hidden, config.hidden)
        self.o_proj = nn.Linear(config.hidden, config.hidden, bias=False)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor, past: Past | None) -> Tensor:
        """x: (batch, length, hidden). With `past`, the real tokens alone: (count, hidden)."""
        batch, length = x.shape[:2] if past is None else past.is_real.shape

        def split_heads(states: Tensor) -> Tensor:
            if past is not None:
                padded = states.new_zeros(batch, length, states.shape[-1])
                padded[past.is_real] = states
                states = padded
            return states.view(batch, length, self.heads, self.head_dim).transpose(1, 2)

        q, k, v = (split_heads(p(x)) for p in (self.q_proj, self.k_proj, self.v_proj))
        q, k = rotate(q, cos, sin).to(v.dtype), rotate(k, cos, sin).to(v.dtype)
        if past is None:
            out = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        else:
            keys, values, positions, mask, _ = past
            index = positions[:, None, :, None].expand(-1, self.heads, -1, self.head_dim)
            keys.scatter_(2, index, k)
            values.scatter_(2, index, v)
            keys, values = keys[:, :, : mask.shape[-1]], values[:, :, : mask.shape[-1]]
            # for the single row of a decode step, two products are three times as fast as the
            # fused kernel
            weights = (q @ keys.transpose(-1, -2)) * self.head_dim**-0.5
            out = weights.masked_fill(~mask, -torch.inf).softmax(-1) @ values
        out = out.transpose(1, 2).reshape(batch, length, -1)
        projected: Tensor = self.o_proj(out if past is None else out[past.is_real])
        return projected


class MLP(nn.Module):
    """The SwiGLU feed-forward block."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(config.hidden, config.ffn, bias=False)
        self.up_proj = nn.Linear(config.hidden, config.ffn, bias=False)
        self.down_proj = nn.Linear(config.ffn, config.hidden, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """x: (batch, length, hidden)."""
        projected: Tensor = self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))
        return projected


class Layer(nn.Module):
    """One pre-norm decoder layer."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.self_attn = Attention(config)
        self.mlp = MLP(config)
        self.input_layernorm = RMSNorm(config.hidden, config.eps)
        self.post_attention_layernorm = RMSNorm(config.hidden, config.eps)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor, past: Past | None) -> Tensor:
        """x: as in `Attention`."""
        x = x + self.self_attn(self.input_layernorm(x), cos, sin, past)
        output: Tensor = x + self.mlp(self.post_attention_layernorm(x))
        return output


class Body(nn.Module):
    """Embeddings, layers and final norm."""

    cos: Tensor
    sin: Tensor

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.config = config
        self.embed_tokens = nn.Embedding(config.vocab, config.hidden)
        layers = nn.ModuleList(Layer(config) for _ in range(config.layers))
        self.layers = cast("Sequence[Layer]", layers)
        self.norm = RMSNorm(config.hidden, config.eps)
        cos, sin = build_rope_tables(config)
        self.register_buffer("cos", cos, persistent=False)
        self.register_buffer("sin", sin, persistent=False)
        for name, parameter in self.named_parameters():
            if parameter.dim() == 2:
                nn.init.normal_(parameter, std=0.4 / math.sqrt(parameter.shape[1]))
            elif name.endswith("bias"):
                nn.init.zeros_(parameter)
        nn.init.normal_(self.embed_tokens.weight, std=0.05)

    def create_cache(self, batch: int, capacity: int) -> Cache:
        """Create an empty cache."""
        config, weight = self.config, self.embed_tokens.weight
        shape = (config.layers, batch, config.heads, capacity, config.head_dim)
        zeros = torch.zeros(shape, dtype=weight.dtype, device=weight.device)
        return Cache(
            zeros,
            torch.zeros_like(zeros),
            torch.zeros(batch, dtype=torch.long, device=weight.device),
        )

    def run(self, x: Tensor, first: int, last: int) -> Tensor:
        """Run layers [first, last) on a whole sequence. x: (batch, length, hidden)."""
        cos, sin = self.cos[: x.shape[1]], self.sin[: x.shape[1]]
        for layer in self.layers[first:last]:
            x = layer(x, cos, sin, None)
        return x

    def forward(self, ids: Tensor) -> Tensor:
        """ids: (batch, length). Returns the normed states (batch, length, hidden)."""
        states: Tensor = self.norm(self.run(self.embed_tokens(ids), 0, len(self.layers)))
        return states

    def extend(self, ids: Tensor, counts: Tensor, cache: Cache) -> Tensor:
        """Append rows of different lengths to the cache.

        ids: (batch, length), right-padded. counts: (batch,), the real tokens of each row.
        Returns the normed states (batch, length, hidden), which are zero for padding.
        """
        length = ids.shape[1]
        positions = cache.lengths[:, None] + torch.arange(length, device=ids.device)[None]
        positions = positions.clamp(max=cache.keys.shape[3] - 1)
        span = int(positions.max()) + 1
        steps = torch.arange(span, device=ids.device)
        mask = steps[None, None, None] <= positions[:, None, :, None]
        cos, sin = self.cos[positions][:, None], self.sin[positions][:, None]
        is_real = torch.arange(length, device=ids.device)[None] < counts[:, None]
        x = self.embed_tokens(ids[is_real])
        for index, layer in enumerate(self.layers):
            past = Past(cache.keys[index], cache.values[index], positions, mask, is_real)
            x = layer(x, cos, sin, past)
        cache.lengths = cache.lengths + counts
        states: Tensor = x.new_zeros(*ids.shape, x.shape[-1])
        states[is_real] = self.norm(x)
        return states


class Generator(nn.Module):
    """Qwen2ForCausalLM with tied embeddings."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.model = Body(config)

    def compute_logits(self, states: Tensor) -> Tensor:
        """states: (..., hidden). Returns (..., vocab)."""
        return F.linear(states, self.model.embed_tokens.weight)

    def forward(self, ids: Tensor) -> Tensor:
        """ids: (batch, length). Returns logits (batch, length, vocab)."""
        return self.compute_logits(self.model(ids))


class Verifier(nn.Module):
    """Qwen2ForProcessRewardModel: two logits at every position, read at the step separators."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.model = Body(config)
        self.score = nn.Sequential(
            nn.Linear(config.hidden, config.hidden), nn.ReLU(), nn.Linear(config.hidden, 2)
        )

    def forward(self, ids: Tensor) -> Tensor:
        """ids: (batch, length). Returns logits (batch, length, 2)."""
        logits: Tensor = self.score(self.model(ids))
        return logits


def set_look_back(layer: Layer, heads: int, sharpness: float = 7.0, pairs: int = 6) -> None:
    """Make the first `heads` heads of a layer attend to the previous token.

    Queries and keys become constants: their weights are zero, and the query is rotated by one
    position, so that the rotary product peaks at distance one. The next layer can then compare the
    token with what the previous position predicted.
    """
    attention = layer.self_attn
    dim, config_theta = attention.head_dim, 10_000.0
    angles = config_theta ** (-torch.arange(0, dim, 2, dtype=torch.float32) / dim)
    key, query = torch.zeros(dim), torch.zeros(dim)
    half = dim // 2
    key[:pairs] = sharpness
    # rotate(query, p) . rotate(key, p - 1) is largest if the query itself is rotated by minus one
    query[:pairs] = sharpness * angles[:pairs].cos()
    query[half : half + pairs] = -sharpness * angles[:pairs].sin()
    with torch.no_grad():
        for head in range(heads):
            rows = slice(head * dim, (head + 1) * dim)
            attention.q_proj.weight[rows] = 0
            attention.k_proj.weight[rows] = 0
            attention.q_proj.bias[rows] = query
            attention.k_proj.bias[rows] = key
