"""Draws tokens on a CPU: those of the naive twin (`naive`), without its arithmetic in 64 bits.

The noise takes nearly all of the time, since a large vocabulary has 150,000 tokens. So it is first
computed in 32 bits, within `TOLERANCE` of `naive.draw_gumbel`. A token that leads by more than
twice the tolerance has won; in one row of a thousand the race is closer, and the leaders are
compared by their exact noise. `fused` does the same on a card. Where a model is sure, most tokens
are so unlikely that no noise lets them win against the likeliest one, and they get none.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from flashedge.engine.vllm.inside.sampling import naive
from flashedge.engine.vllm.inside.sampling.naive import draw_gumbel, scale_rows
from flashedge.engine.vllm.inside.sampling.rows import IndexedRow

ELEMENTS = 1 << 18
"""Logits that are processed at once: what is computed of them stays in a core's cache."""
TOLERANCE = 5e-4
"""Bounds the error of the noise in 32 bits. See `fused.TOLERANCE`."""
_ROUNDING = 2.0**-20
"""Relative error of a sum of logit and noise."""
SPAN = 19.5
"""At least the largest noise minus the smallest: -log(-log(u)) for u of 24 bits lies in
(-2.82, 16.64)."""
_EVERY = 61
"""Every so many tokens are looked at to learn how many may win."""


def mark_winners(
    logits: torch.Tensor, sampled: Sequence[IndexedRow], token_hashes: torch.Tensor
) -> None:
    """Set the logit of each sampled row's drawn token to infinity, in place.

    logits: (batch, vocab) float32; token_hashes: see `hash_tokens`.
    """
    at_once = max(1, ELEMENTS // logits.shape[1])
    for start in range(0, len(sampled), at_once):
        part = sampled[start : start + at_once]
        index, scaled = scale_rows(logits, part)
        keys = [row.key for _, row in part]
        if at_once == 1:
            winners = [_find_winner(scaled[0], keys[0], token_hashes)]
        else:
            winners = _find_winners(scaled, keys, token_hashes)
        logits[index, torch.tensor(winners)] = float("inf")


def hash_tokens(vocab: int, device: torch.device) -> torch.Tensor:
    """`naive.hash_tokens` as signed numbers: (vocab,) int32."""
    return naive.hash_tokens(vocab, device).to(torch.int32)


def _find_winner(scaled: torch.Tensor, key: int, hashes: torch.Tensor) -> int:
    """As `_find_winners`, of the tokens of one row that may win against its likeliest one."""
    may_win = scaled >= scaled.amax() - SPAN
    if may_win[::_EVERY].count_nonzero() * 3 * _EVERY > len(scaled):  # too many to collect them
        return _find_winners(scaled.unsqueeze(0), [key], hashes)[0]
    ids = may_win.nonzero().squeeze(1)
    if not len(ids):  # a logit is no number
        return int(scaled.argmax())
    [winner] = _find_winners(scaled[ids].unsqueeze(0), [key], hashes[ids])
    return int(ids[winner])


def _find_winners(scaled: torch.Tensor, keys: list[int], hashes: torch.Tensor) -> list[int]:
    """The token of each row with the largest sum of logit and noise. scaled: (rows, vocab)."""
    sums = approximate_gumbel(draw_bits(keys, hashes)).add_(scaled)
    best = sums.amax(dim=1, keepdim=True)
    leaders: list[list[int]] = [[] for _ in keys]
    for row, token in (sums >= best - (2 * TOLERANCE + _ROUNDING * best.abs())).nonzero().tolist():
        leaders[row].append(token)
    for row, tokens in enumerate(leaders):
        if len(tokens) > 1:
            exact = scaled[row, tokens] + _draw_noise(keys[row], hashes[tokens])
            leaders[row] = [tokens[int(exact.argmax())]]
        elif not tokens:  # a logit is no number, or all are infinite
            leaders[row] = [int(sums[row].argmax())]
    return [token for (token,) in leaders]


def _draw_noise(key: int, hashes: torch.Tensor) -> torch.Tensor:
    """The exact noise of some tokens of a row: (tokens,) int32 -> (tokens,) float32."""
    return draw_gumbel([key], hashes.to(torch.int64) & 0xFFFFFFFF)[0].to(torch.float32)


def draw_bits(keys: list[int], hashes: torch.Tensor) -> torch.Tensor:
    """The random bits of `naive.draw_gumbel`, inverted: (rows, tokens) int32, below 2**23.

    keys: (rows,) of 63 bits; hashes: (tokens,) int32.
    """
    low = torch.tensor([[_as_int32(key)] for key in keys], dtype=torch.int32)
    high = torch.tensor([[_as_int32(key >> 32)] for key in keys], dtype=torch.int32)
    word = _fmix32(_fmix32(hashes ^ low).bitwise_xor_(high))
    return word.bitwise_not_().bitwise_right_shift_(9).bitwise_and_(0x7FFFFF)


def approximate_gumbel(inverted: torch.Tensor) -> torch.Tensor:
    """`naive.draw_gumbel` in float32, within `TOLERANCE`.

    The uniform number less 1 is exact, where the logarithm of a number near 1 would not be.
    """
    rest = inverted.to(torch.float32).add_(0.5).mul_(-(2.0**-23))
    return rest.log1p_().neg_().log_().neg_()


def _fmix32(x: torch.Tensor) -> torch.Tensor:
    """MurmurHash3's finalizer on int32, whose products wrap, in place. A right shift fills with the
    sign, which the mask removes."""
    x.bitwise_xor_((x >> 16).bitwise_and_(0xFFFF)).mul_(_as_int32(0x85EBCA6B))
    x.bitwise_xor_((x >> 13).bitwise_and_(0x7FFFF)).mul_(_as_int32(0xC2B2AE35))
    return x.bitwise_xor_((x >> 16).bitwise_and_(0xFFFF))


def _as_int32(value: int) -> int:
    """The signed number with the same 32 bits."""
    value &= 0xFFFFFFFF
    return value - (1 << 32) if value >> 31 else value
