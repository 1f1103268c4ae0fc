"""The class that vLLM runs for `free_model`. It keeps KV blocks and never reads them."""

import math
from collections.abc import Iterable

import torch
from torch import nn
from vllm.config import VllmConfig
from vllm.model_executor.layers.attention import Attention

from scripts.bench.engine.free_model import HIDDEN, TEMPERATURE, TOKENS

NEVER = -math.inf


class FreeModel(nn.Module):
    """Its hidden state is the token itself, and its logits follow from that alone."""

    def __init__(self, *, vllm_config: VllmConfig, prefix: str = "") -> None:
        super().__init__()
        says = vllm_config.model_config.hf_config.free_model
        self.first, self.blank_line = says["first"], says["blank_line"]
        self.attention = Attention(
            1, HIDDEN, 1.0, cache_config=vllm_config.cache_config, prefix="layers.0.attention"
        )
        left, end_share = torch.tensor(says["left"]), says["end_share"]
        self.block = (TOKENS - self.first) // max(1, len(left))
        """Tokens that tell the same number of tokens left."""
        ordinary = torch.zeros(1, TOKENS)
        ordinary[:, : self.first] = NEVER
        starts = torch.full((2, TOKENS), NEVER)  # of a path, of another step
        if len(left):
            told = torch.arange(TOKENS - self.first).div(self.block, rounding_mode="floor")
            shares = torch.cat([left / self.block, torch.zeros(1)])[told.clamp(max=len(left))]
            starts[:, self.first :] = TEMPERATURE * shares.log()
            starts[1, self.first :] += TEMPERATURE * math.log1p(-end_share)
            starts[1, says["end"]] = TEMPERATURE * math.log(end_share)
        # In half precision, so that the engine's own copy in float32 is the only one.
        self.register_buffer("ordinary", ordinary.bfloat16(), persistent=False)
        self.register_buffer("starts", starts, persistent=False)
        self.register_buffer("within", torch.arange(self.block), persistent=False)
        self.is_endless = not len(left)

    def embed_input_ids(self, input_ids: torch.Tensor) -> torch.Tensor:
        """(tokens,) -> (tokens, HIDDEN)."""
        return input_ids.float().unsqueeze(-1).expand(-1, HIDDEN)

    def forward(
        self,
        input_ids: torch.Tensor,
        positions: torch.Tensor,
        intermediate_tensors: object = None,
        inputs_embeds: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """(tokens,) -> (tokens, HIDDEN). Nothing else is read."""
        return self.embed_input_ids(input_ids) if inputs_embeds is None else inputs_embeds

    def compute_logits(self, hidden_states: torch.Tensor) -> torch.Tensor:
        """(rows, HIDDEN) -> (rows, TOKENS)."""
        rows = len(hidden_states)
        if self.is_endless:
            return self.ordinary.expand(rows, -1)  # type: ignore[operator]
        last = hidden_states[:, 0].long()
        left = (last - self.first).div(self.block, rounding_mode="floor")
        after = self.first + (left - 1) * self.block
        inside = last >= self.first
        logits = hidden_states.new_full((rows, TOKENS), NEVER)
        following = torch.where(inside & (left > 0), after, self.blank_line).unsqueeze(1)
        several = (left > 0).unsqueeze(1)
        logits.scatter_(1, following + self.within * several, 0.0)
        of = (last == self.blank_line).long()
        return torch.where(inside.unsqueeze(1), logits, self.starts[of])  # type: ignore[index]

    def load_weights(self, weights: Iterable[tuple[str, torch.Tensor]]) -> set[str]:
        """There are none."""
        for _ in weights:
            pass
        return set()
