"""Draws tokens on a CPU: those of the naive twin (`naive`), without its arithmetic in 64 bits.

The noise of 150,000 tokens takes nearly all of the time. So it is first computed in 32 bits, within
`TOLERANCE` of `naive.draw_gumbel`. A token that leads by more than twice the tolerance has won; in
one row of a thousand the race is closer, and the leaders are compared by their exact noise. Rows of
a vocabulary above `ELEMENTS` / 2 are handled one by one, without noise for the tokens that can't
win against the likeliest one.

numpy hashes and compares in a fraction of PyTorch's time; PyTorch has the faster logarithms.
"""

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from vllm.v1.sample.ops import logprobs

from flashedge.engine.vllm.inside.sampling import naive
from flashedge.engine.vllm.inside.sampling.naive import IndexedRow, draw_gumbel, scale_rows

ELEMENTS = 1 << 18
"""Logits that are processed at once. Each array of them has 1 MB and stays in a core's cache."""
TOLERANCE = 5e-4
"""Bounds the error of the noise in 32 bits. See `fused.TOLERANCE`."""
_ROUNDING = 2.0**-20
"""Bounds the relative rounding error of a sum of logit and noise, some 2**-23."""
SPAN = 19.5
"""More than the largest noise minus the smallest: `naive.draw_gumbel` lies in (-2.82, 16.64)."""

NUCLEUS = 16.0
"""Nats below the likeliest token within which top-p nearly always ends: 150,000 tokens of less
would have a fiftieth of its weight."""
CLOSE = 1e-6
"""A top-p this close to the weight of the tokens before is left to `naive.truncate`, since sums in
another order and in 32 bits differ by some 1e-7."""

Hashes = NDArray[np.uint32]
Floats = NDArray[np.float32]


def mark_winners(
    logits: torch.Tensor, sampled: Sequence[IndexedRow], token_hashes: torch.Tensor
) -> None:
    """Set the logit of each row's winner to infinity, in place. Arguments as for `naive.sample`,
    but token_hashes are those of `hash_tokens` below: (vocab,) int32."""
    at_once = max(1, ELEMENTS // logits.shape[1])
    hashes = token_hashes.numpy().view(np.uint32)
    for start in range(0, len(sampled), at_once):
        part = sampled[start : start + at_once]
        index, scaled = scale_rows(logits, part, truncate)
        keys = [row.key for _, row in part]
        if at_once == 1:
            winners = [_find_winner(scaled[0].numpy(), keys[0], hashes)]
        else:
            winners = _find_winners(scaled.numpy(), keys, hashes)
        logits[index, torch.tensor(winners)] = float("inf")


def hash_tokens(vocab: int, device: torch.device) -> torch.Tensor:
    """Hash each token's id as `naive.hash_tokens` does. Returns (vocab,) int32."""
    return naive.hash_tokens(vocab, device).to(torch.int32)


def truncate(logits: torch.Tensor, top_k: list[int], top_p: list[float]) -> torch.Tensor:
    """Do what `naive.truncate` does, in place and without sorting the whole vocabulary."""
    for row, given, p in zip(logits, top_k, top_p, strict=True):
        k = given if given < len(row) else 0
        if k or p < 1:
            kept = _find_kept(row.numpy(), k, p)
            if kept is None:
                row.copy_(naive.truncate(row[None], [k], [p])[0])
            else:
                values = row[kept]
                row.fill_(float("-inf"))[kept] = values
    return logits


def _find_kept(row: Floats, k: int, p: float) -> NDArray[np.int64] | None:
    """Find the tokens of a row that top-k and top-p keep, the likeliest first. None where that is
    not certain: a logit is NaN, too many unlikely tokens count, or rounding decides. None, too,
    where so many tokens are near the likeliest that sorting all takes no longer."""
    best = row.max()
    if not np.isfinite(best):
        return None
    least = np.partition(row, -k)[-k] if k else best - NUCLEUS
    near = np.flatnonzero(row >= least)
    if 2 * len(near) > len(row):
        return None
    kept = near[np.argsort(-row[near], kind="stable")][: k or None]
    if p >= 1:
        return kept
    weights = np.exp(row[kept] - best, dtype=np.float64)
    total = weights.sum() if k else np.exp(row - best).sum(dtype=np.float64)
    before = (weights.cumsum() - weights) / total
    count = int(np.searchsorted(before, p))
    ends = k or count < len(kept)
    return kept[: max(count, 1)] if ends and np.abs(before - p).min() > CLOSE else None


def _find_winner(scaled: Floats, key: int, hashes: Hashes) -> int:
    """Find the winner of one row among the tokens that may win against its likeliest one."""
    may_win = scaled >= scaled.max() - SPAN
    count = np.count_nonzero(may_win)
    if not count:  # a logit is NaN
        return int(scaled.argmax())
    if 3 * count > len(scaled):  # collecting so many takes longer than their noise
        return _find_winners(scaled[None], [key], hashes)[0]
    ids = np.flatnonzero(may_win)
    [winner] = _find_winners(scaled[None, ids], [key], hashes[ids])
    return int(ids[winner])


def _find_winners(scaled: Floats, keys: list[int], hashes: Hashes) -> list[int]:
    """Find the token of each row with the largest sum of logit and noise. scaled: (rows, vocab)."""
    sums = approximate_gumbel(draw_bits(keys, hashes)).numpy()
    sums += scaled
    winners: list[int] = sums.argmax(axis=1).tolist()
    best = sums.max(axis=1, keepdims=True)
    with np.errstate(invalid="ignore"):  # infinity minus infinity
        leads = sums >= best - (2 * TOLERANCE + _ROUNDING * np.abs(best))
    for row in np.flatnonzero(np.count_nonzero(leads, axis=1) > 1):
        tokens = np.flatnonzero(leads[row])
        noise = draw_gumbel([keys[row]], torch.from_numpy(hashes[tokens].astype(np.int64)))
        exact = scaled[row, tokens] + noise[0].float().numpy()
        winners[row] = int(tokens[exact.argmax()])
    return winners


def draw_bits(keys: list[int], hashes: Hashes) -> torch.Tensor:
    """Draw the random bits of `naive.draw_gumbel`: (rows, tokens) int32, below 2**23."""
    wide = np.array(keys, dtype=np.uint64)[:, None]
    word = hashes ^ wide.astype(np.uint32)
    _mix(word)
    word ^= (wide >> 32).astype(np.uint32)
    _mix(word)
    word >>= 9
    return torch.from_numpy(word.view(np.int32))


def approximate_gumbel(bits: torch.Tensor) -> torch.Tensor:
    """Compute the noise of `naive.draw_gumbel` in 32 bits, which hold each uniform exactly."""
    uniform = bits.to(torch.float32).add_(0.5).mul_(2.0**-23)
    return uniform.log_().neg_().log_().neg_()


def _mix(word: Hashes) -> None:
    word ^= word >> 16
    word *= np.uint32(0x85EBCA6B)
    word ^= word >> 13
    word *= np.uint32(0xC2B2AE35)
    word ^= word >> 16


_count_in_vllm = logprobs.batched_count_greater_than


def count_at_least(x: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
    """Stand in for vLLM's count, which sums booleans: on a CPU that is slower than a log-softmax.
    x: (rows, vocab); values: (rows, 1). Returns (rows,) int64."""
    if x.device.type != "cpu":
        return _count_in_vllm(x, values)
    pairs = zip(x.numpy(), values.numpy(), strict=True)
    counts = [np.count_nonzero(row >= value) for row, value in pairs]
    return torch.tensor(counts, dtype=torch.int64)
