"""Sampling as argmax(logits / T + Gumbel noise), the noise a pure function of (seed, position).

vLLM's own seeded sampling restarts its random stream with each request, so a path that is cut
at a boundary and submitted again would draw other tokens. Here the noise of the token at absolute
position p under seed s is hash(s, p, token id), whatever the batch, the request or the
preemptions before it. Requests run at temperature 0 (vLLM takes the argmax of what we return).

Must see logits before penalties (vLLM applies those later): callers refuse penalties.
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
ELEMENTS = 1 << 23  # of logits that are worked on at once: some 300 MB of intermediate results
CANDIDATES = 1024  # tokens of a row that get noise first
SPAN = 19.5  # largest noise less the least: -log(-log(u)) for u of 24 bits is in (-2.82, 16.64)


@dataclass(slots=True)
class _Row:
    """One request in the batch. `output` is vLLM's live list of its generated ids."""

    seed: int
    temperature: float
    top_k: int
    top_p: float
    prompt_len: int
    output: list[int]

    @property
    def position(self) -> int:
        return self.prompt_len + len(self.output)


class PositionNoise(LogitsProcessor):
    """Temperature, top-k, top-p and position-keyed Gumbel noise for requests that carry
    `extra_args["flashedge"]`; others pass untouched."""

    def __init__(self, vllm_config: VllmConfig, device: torch.device, is_pin_memory: bool) -> None:
        self._device = device
        self._rows: dict[int, _Row] = {}
        self._token_hash: torch.Tensor | None = None

    def is_argmax_invariant(self) -> bool:
        return False

    def update_state(self, batch_update: BatchUpdate | None) -> None:
        if batch_update is None:
            return
        for index in batch_update.removed:
            self._rows.pop(index, None)
        for index, params, prompt_ids, output_ids in batch_update.added:
            row = _row(params, prompt_ids, output_ids)
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
        """logits: (batch, vocab) float32; returns the same tensor, drawn rows changed in place."""
        drawn = [(i, r) for i, r in self._rows.items() if r.temperature > 0 and i < len(logits)]
        at_once = max(1, ELEMENTS // logits.shape[1])
        for start in range(0, len(drawn), at_once):
            self._draw(logits, drawn[start : start + at_once])
        return logits

    def _draw(self, logits: torch.Tensor, drawn: list[tuple[int, _Row]]) -> None:
        index = torch.tensor([i for i, _ in drawn], device=self._device)
        rows = [r for _, r in drawn]
        scaled = logits[index] / self._column([r.temperature for r in rows], logits.dtype)
        scaled = truncate(scaled, [r.top_k for r in rows], [r.top_p for r in rows])
        keys = [mix64(r.seed, r.position) for r in rows]
        logits[index] = noisy(scaled, keys, self._hashes(logits.shape[1]))

    def _column(self, values: list[float], dtype: torch.dtype) -> torch.Tensor:
        return torch.tensor(values, dtype=dtype, device=self._device).unsqueeze(1)

    def _hashes(self, vocab: int) -> torch.Tensor:
        if self._token_hash is None or len(self._token_hash) != vocab:
            self._token_hash = token_hashes(vocab, self._device)
        return self._token_hash


def token_hashes(vocab: int, device: torch.device) -> torch.Tensor:
    """(vocab,) int64 of 32 bits."""
    ids = torch.arange(vocab, device=device, dtype=torch.int64)
    return (ids * 0x9E3779B1) & _MASK32


def noisy(
    scaled: torch.Tensor, keys: list[int], token_hash: torch.Tensor, candidates: int = CANDIDATES
) -> torch.Tensor:
    """Logits whose argmax is that of `scaled` + noise. scaled: (rows, vocab); keys: (rows,).

    A token that lies SPAN below the best can't win, whatever its noise, so only the `candidates`
    best get noise; all do in rows where more might win. The noise is most of a step's sampling:
    its arithmetic is in 64 bits, and a large vocabulary has 150,000 tokens.
    """
    if scaled.shape[1] <= candidates:
        return scaled + gumbel(keys, token_hash.unsqueeze(0)).to(scaled.dtype)
    best, ids = scaled.topk(candidates, dim=1)
    drawn = best + gumbel(keys, token_hash[ids]).to(scaled.dtype)
    found = scaled.scatter(1, ids, drawn)
    rows = (best[:, -1] > best[:, 0] - SPAN).nonzero().squeeze(1).tolist()
    if rows:
        noise = gumbel([keys[row] for row in rows], token_hash.unsqueeze(0))
        found[rows] = scaled[rows] + noise.to(scaled.dtype)
    return found


def gumbel(keys: list[int], token_hash: torch.Tensor) -> torch.Tensor:
    """Standard Gumbel noise. keys: (rows,) 63-bit; token_hash: (1 or rows, tokens) int64; ->
    (rows, tokens).

    float64: an ulp that depends on an element's place in a vectorized kernel would otherwise
    depend on the batch; after the cast to float32 it is gone.
    """
    key = torch.tensor(keys, dtype=torch.int64, device=token_hash.device).unsqueeze(1)
    low, high = key & _MASK32, (key >> 32) & _MASK32
    word = _fmix32(_fmix32(token_hash ^ low) ^ high)
    uniform = ((word >> 9).to(torch.float64) + 0.5) / 2.0**23  # 23 bits: never 0, never 1
    return -torch.log(-torch.log(uniform))


def _fmix32(x: torch.Tensor) -> torch.Tensor:
    """MurmurHash3's finalizer on 32-bit words held in int64."""
    x = ((x ^ (x >> 16)) * 0x85EBCA6B) & _MASK32
    x = ((x ^ (x >> 13)) * 0xC2B2AE35) & _MASK32
    return x ^ (x >> 16)


def truncate(logits: torch.Tensor, top_k: list[int], top_p: list[float]) -> torch.Tensor:
    """Mask what top-k and top-p exclude with -inf. logits: (rows, vocab), already / T.

    top_k 0 and top_p 1 are off. The most likely token always stays.
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


def _row(params: SamplingParams, prompt: list[int] | None, output: list[int]) -> _Row | None:
    args: dict[str, Any] | None = (params.extra_args or {}).get(ARGS_KEY)
    if args is None or prompt is None:
        return None
    return _Row(
        seed=args["seed"],
        temperature=args["temperature"],
        top_k=args["top_k"],
        top_p=args["top_p"],
        prompt_len=len(prompt),
        output=output,
    )
