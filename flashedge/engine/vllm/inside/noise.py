"""Sampling as argmax(logits / T + Gumbel noise), the noise a pure function of (seed, position).

The noise of the token at absolute position p under seed s is hash(s, p, token id), whatever the
batch, the request or the preemptions before it. vLLM's own seeded sampling restarts its random
stream with each request, so a path that ends at a boundary and is submitted again would draw other
tokens. Requests run at temperature 0, at which vLLM takes the argmax of what this returns.

vLLM applies penalties to the logits later than this processor, so callers refuse penalties.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from vllm import SamplingParams
from vllm.config import VllmConfig
from vllm.v1.sample.logits_processor import BatchUpdate, LogitsProcessor, MoveDirectionality

from flashedge.engine.vllm.inside.keys import ARGS_KEY
from flashedge.search.seeds import mix64

_MASK32 = 0xFFFFFFFF
ELEMENTS = 1 << 23
"""Logits that are processed at once. They take some 300 MB of intermediate results."""
CANDIDATES = 1024
"""How many of a row's most likely tokens get noise first."""
SPAN = 19.5
"""At least the largest noise minus the smallest: -log(-log(u)) for u of 24 bits lies in
(-2.82, 16.64)."""


@dataclass(slots=True)
class SampledRow:
    """One request in the batch."""

    seed: int
    temperature: float
    top_k: int
    top_p: float
    prompt_len: int
    output: list[int]
    """The generated ids. vLLM appends to this list."""

    @property
    def position(self) -> int:
        return self.prompt_len + len(self.output)


class PositionNoise(LogitsProcessor):
    """Applies temperature, top-k, top-p and noise to requests with `extra_args["flashedge"]`.

    The logits of other requests stay as they are.
    """

    def __init__(self, vllm_config: VllmConfig, device: torch.device, is_pin_memory: bool) -> None:
        self._device = device
        self._rows: dict[int, SampledRow] = {}
        """By the request's index in the batch."""
        self._token_hashes: torch.Tensor | None = None

    def is_argmax_invariant(self) -> bool:
        return False

    def update_state(self, batch_update: BatchUpdate | None) -> None:
        if batch_update is None:
            return
        for index in batch_update.removed:
            self._rows.pop(index, None)
        for index, params, prompt_ids, output_ids in batch_update.added:
            row = _make_row(params, prompt_ids, output_ids)
            if row is None:
                self._rows.pop(index, None)
            else:
                self._rows[index] = row
        for source, target, direction in batch_update.moved:
            moved, displaced = self._rows.pop(source, None), self._rows.pop(target, None)
            if moved is not None:
                self._rows[target] = moved
            if direction == MoveDirectionality.SWAP and displaced is not None:
                self._rows[source] = displaced

    def apply(self, logits: torch.Tensor) -> torch.Tensor:
        """Add noise to the rows that are sampled, in place. logits: (batch, vocab) float32."""
        sampled = [(i, r) for i, r in self._rows.items() if r.temperature > 0 and i < len(logits)]
        at_once = max(1, ELEMENTS // logits.shape[1])
        for start in range(0, len(sampled), at_once):
            self._sample(logits, sampled[start : start + at_once])
        return logits

    def _sample(self, logits: torch.Tensor, sampled: list[tuple[int, SampledRow]]) -> None:
        index = torch.tensor([i for i, _ in sampled], device=self._device)
        rows = [r for _, r in sampled]
        scaled = logits[index] / self._make_column([r.temperature for r in rows], logits.dtype)
        scaled = truncate(scaled, [r.top_k for r in rows], [r.top_p for r in rows])
        keys = [mix64(r.seed, r.position) for r in rows]
        logits[index] = add_noise(scaled, keys, self._get_token_hashes(logits.shape[1]))

    def _make_column(self, values: list[float], dtype: torch.dtype) -> torch.Tensor:
        return torch.tensor(values, dtype=dtype, device=self._device).unsqueeze(1)

    def _get_token_hashes(self, vocab: int) -> torch.Tensor:
        if self._token_hashes is None or len(self._token_hashes) != vocab:
            self._token_hashes = hash_tokens(vocab, self._device)
        return self._token_hashes


def hash_tokens(vocab: int, device: torch.device) -> torch.Tensor:
    """Returns (vocab,) int64, of 32 bits each."""
    ids = torch.arange(vocab, device=device, dtype=torch.int64)
    return (ids * 0x9E3779B1) & _MASK32


def add_noise(
    scaled: torch.Tensor, keys: list[int], token_hashes: torch.Tensor, candidates: int = CANDIDATES
) -> torch.Tensor:
    """Return logits whose argmax is that of `scaled` + noise.

    A token that lies SPAN below the best one can't win, whatever its noise. So only the
    `candidates` most likely tokens get noise, and all tokens in rows where others might win. The
    noise takes most of the sampling time, since its arithmetic is in 64 bits and a large vocabulary
    has 150,000 tokens.

    scaled: (rows, vocab); keys: (rows,); token_hashes: (vocab,).
    """
    if scaled.shape[1] <= candidates:
        return scaled + draw_gumbel(keys, token_hashes.unsqueeze(0)).to(scaled.dtype)
    best, ids = scaled.topk(candidates, dim=1)
    sums = best + draw_gumbel(keys, token_hashes[ids]).to(scaled.dtype)
    result = scaled.scatter(1, ids, sums)
    rows = (best[:, -1] > best[:, 0] - SPAN).nonzero().squeeze(1).tolist()
    if rows:
        noise = draw_gumbel([keys[row] for row in rows], token_hashes.unsqueeze(0))
        result[rows] = scaled[rows] + noise.to(scaled.dtype)
    return result


def draw_gumbel(keys: list[int], token_hashes: torch.Tensor) -> torch.Tensor:
    """Return standard Gumbel noise, (rows, tokens) float64.

    In float32 the last bit can depend on an element's place in a vectorized kernel, and so on the
    batch. In float64 it does too, but the cast to float32 removes the difference.

    keys: (rows,) of 63 bits; token_hashes: (1 or rows, tokens) int64.
    """
    key = torch.tensor(keys, dtype=torch.int64, device=token_hashes.device).unsqueeze(1)
    low, high = key & _MASK32, (key >> 32) & _MASK32
    word = _fmix32(_fmix32(token_hashes ^ low) ^ high)
    uniform = ((word >> 9).to(torch.float64) + 0.5) / 2.0**23  # 23 bits: never 0, never 1
    return -torch.log(-torch.log(uniform))


def _fmix32(x: torch.Tensor) -> torch.Tensor:
    """MurmurHash3's finalizer on 32-bit words held in int64."""
    x = ((x ^ (x >> 16)) * 0x85EBCA6B) & _MASK32
    x = ((x ^ (x >> 13)) * 0xC2B2AE35) & _MASK32
    return x ^ (x >> 16)


def truncate(logits: torch.Tensor, top_k: list[int], top_p: list[float]) -> torch.Tensor:
    """Replace what top-k and top-p exclude by -inf. The most likely token always stays.

    logits: (rows, vocab), divided by the temperature; top_k: 0 excludes nothing; top_p: 1 excludes
    nothing.
    """
    if not any(top_k) and all(p >= 1.0 for p in top_p):
        return logits
    vocab = logits.shape[1]
    ordered, order = logits.sort(dim=1, descending=True, stable=True)
    rank = torch.arange(vocab, device=logits.device).unsqueeze(0)
    limit = torch.tensor([k or vocab for k in top_k], device=logits.device).unsqueeze(1)
    ordered = ordered.masked_fill(rank >= limit, float("-inf"))
    probs = ordered.softmax(dim=1, dtype=torch.float64)
    before = probs.cumsum(dim=1) - probs
    bound = torch.tensor(top_p, dtype=torch.float64, device=logits.device).unsqueeze(1)
    ordered = ordered.masked_fill((before >= bound) & (rank > 0), float("-inf"))
    return torch.empty_like(logits).scatter_(1, order, ordered)


def _make_row(
    params: SamplingParams, prompt: list[int] | None, output: list[int]
) -> SampledRow | None:
    """Return None for a request without our parameters."""
    args: dict[str, Any] | None = (params.extra_args or {}).get(ARGS_KEY)
    if args is None or prompt is None:
        return None
    return SampledRow(
        seed=args["seed"],
        temperature=args["temperature"],
        top_k=args["top_k"],
        top_p=args["top_p"],
        prompt_len=len(prompt),
        output=output,
    )
