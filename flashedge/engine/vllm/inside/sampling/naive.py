"""Draws tokens by PyTorch's operations: the naive twin of `fused` and `on_cpu`.

The host never waits for a card, since it reads no result back.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

from flashedge.search.tree import mix64

_MASK32 = 0xFFFFFFFF
ELEMENTS = 1 << 23
"""Logits that are processed at once. Their intermediate results take some 300 MB."""
FIELDS = 5
"""Numbers by which `pack_rows` describes a row."""


@dataclass(slots=True)
class SampledRow:
    """How the next token of a request is drawn. top_k 0, top_p 1 and min_p 0 exclude nothing."""

    seed: int
    temperature: float
    top_k: int
    top_p: float
    prompt_len: int
    """Tokens before `output`."""
    output: Sequence[int]
    """The generated ids. vLLM appends to the list of a request in the batch."""
    min_p: float = 0.0

    @property
    def key(self) -> int:
        """The key of the next token's noise, of 63 bits."""
        return mix64(self.seed, self.prompt_len + len(self.output))

    def move(self, tokens: int) -> "SampledRow":
        """The row so many tokens later."""
        return replace(self, prompt_len=self.prompt_len + tokens) if tokens else self


IndexedRow = tuple[int, SampledRow]
"""The index of a row in the batch, and the row."""
Cut = Callable[[torch.Tensor, list[int], list[float]], torch.Tensor]
"""`truncate`, or a function with the same result."""


def pack_rows(sampled: Sequence[IndexedRow], device: torch.device) -> torch.Tensor:
    """Describe rows to the kernel by one copy to the device: (rows, FIELDS) int64, the index in the
    batch, the key, top-k, and the float64 bits of temperature and top-p."""
    packed = np.empty((len(sampled), FIELDS), dtype=np.int64)
    packed[:, :3] = [(index, row.key, row.top_k) for index, row in sampled]
    packed[:, 3:].view(np.float64)[:] = [(row.temperature, row.top_p) for _, row in sampled]
    return copy_to(packed, torch.int64, device)


def copy_to(values: Any, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """Copy a sequence of numbers, or a tensor, to the device. The host does not wait for it: from
    pageable memory CUDA would copy only after all queued work, so the memory is pinned."""
    tensor = torch.as_tensor(values, dtype=dtype)
    if device.type == "cuda" and torch.cuda.is_available():  # tests have fake tensors without it
        tensor = tensor.pin_memory()
    return tensor.to(device, non_blocking=True)


def sample(logits: torch.Tensor, sampled: Sequence[IndexedRow], token_hashes: torch.Tensor) -> None:
    """Make the drawn token of each sampled row its argmax, in place. logits: (batch, vocab)
    float32. token_hashes: see `hash_tokens`."""
    at_once = max(1, ELEMENTS // logits.shape[1])
    for start in range(0, len(sampled), at_once):
        part = sampled[start : start + at_once]
        index, scaled = scale_rows(logits, part)
        noise = draw_gumbel([row.key for _, row in part], token_hashes.unsqueeze(0))
        logits.index_copy_(0, index, scaled + noise.to(scaled.dtype))


def scale_rows(
    logits: torch.Tensor, sampled: Sequence[IndexedRow], cut: Cut | None = None
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the indices of the sampled rows, (rows,), and their logits after temperature, top-k
    and top-p, (rows, vocab). cut: excludes what `truncate` does, in its place."""
    index = copy_to([i for i, _ in sampled], torch.int64, logits.device)
    rows = [r for _, r in sampled]
    temperatures = copy_to([r.temperature for r in rows], logits.dtype, logits.device)
    scaled = logits.index_select(0, index) / temperatures.unsqueeze(1)
    return index, (cut or truncate)(scaled, [r.top_k for r in rows], [r.top_p for r in rows])


def hash_tokens(vocab: int, device: torch.device) -> torch.Tensor:
    """Hash each token's id to 32 bits. Returns (vocab,) int64."""
    ids = torch.arange(vocab, device=device, dtype=torch.int64)
    return (ids * 0x9E3779B1) & _MASK32


def draw_gumbel(keys: list[int], token_hashes: torch.Tensor) -> torch.Tensor:
    """Return standard Gumbel noise, (rows, tokens) float64.

    In float32 the last bit can depend on an element's place in a vectorized kernel, and so on the
    batch. In float64 it does too, but the cast to float32 removes the difference.

    keys: (rows,) of 63 bits; token_hashes: (1 or rows, tokens) int64.
    """
    key = copy_to(keys, torch.int64, token_hashes.device).unsqueeze(1)
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
    """Replace the logits that top-k and top-p exclude by -inf, never the likeliest token's."""
    if not any(top_k) and all(p >= 1.0 for p in top_p):
        return logits
    vocab = logits.shape[1]
    ordered, order = logits.sort(dim=1, descending=True, stable=True)
    rank = torch.arange(vocab, device=logits.device).unsqueeze(0)
    limit = copy_to([k or vocab for k in top_k], torch.int64, logits.device).unsqueeze(1)
    ordered = ordered.masked_fill(rank >= limit, float("-inf"))
    probs = _compute_probabilities(ordered)
    before = probs.cumsum(dim=1) - probs
    bound = copy_to(top_p, torch.float64, logits.device).unsqueeze(1)
    ordered = ordered.masked_fill((before >= bound) & (rank > 0), float("-inf"))
    return torch.empty_like(logits).scatter_(1, order, ordered)


def _compute_probabilities(ordered: torch.Tensor) -> torch.Tensor:
    if not ordered.is_cuda:
        return ordered.softmax(dim=1, dtype=torch.float64)
    # vLLM's batch-invariant mode replaces softmax on a card by a kernel that takes no float64.
    weights = (ordered.double() - ordered.double().amax(dim=1, keepdim=True)).exp()
    return weights / weights.sum(dim=1, keepdim=True)


def exclude_unlikely(logits: torch.Tensor, sampled: Sequence[IndexedRow]) -> None:
    """Exclude the tokens whose probability is below min-p times the highest one, in place."""
    cut = [(index, find_span(row)) for index, row in sampled if row.min_p]
    if not cut:
        return
    index = copy_to([i for i, _ in cut], torch.int64, logits.device)
    span = copy_to([least for _, least in cut], logits.dtype, logits.device).unsqueeze(1)
    rows = logits.index_select(0, index)
    least = rows.amax(dim=1, keepdim=True) + span
    logits.index_copy_(0, index, rows.masked_fill(rows < least, float("-inf")))


def find_span(row: SampledRow) -> float:
    """How far below the highest logit of a row min-p excludes tokens."""
    return row.temperature * math.log(row.min_p) if row.min_p else -math.inf
