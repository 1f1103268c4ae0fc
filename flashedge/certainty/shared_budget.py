"""One token budget over a batch of problems: what unsure ones need is taken from sure ones."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """What one problem may still want. wanted_tokens: to come to its cap, 0 when it is over;
    certainty in [0, 1], None before anything is known."""

    wanted_tokens: int
    certainty: float | None


def share_budget(left_tokens: int, claims: Sequence[Claim]) -> tuple[int, ...]:
    """claims: (k,) -> (k,) tokens for each, at most what it wants, `left_tokens` at most in all.

    In proportion to 1 - certainty (unknown counts as unsure, a sure one with a hundredth); what a
    claim does not want goes to the others in the same proportion. Whole tokens, rounded down, so a
    few may be left over. Ref: arXiv 2412.20993 App. B.2 ("distributing the computational budget"),
    which gives no formula: this one is ours.
    """
    weights = [max(0.01, 1.0 - (c.certainty or 0.0)) for c in claims]
    given = [0] * len(claims)
    left = max(0, left_tokens)
    while left:
        hungry = [i for i, c in enumerate(claims) if given[i] < c.wanted_tokens]
        whole = math.fsum(weights[i] for i in hungry)
        rations = {i: int(left * weights[i] / whole) for i in hungry}
        eaten = 0
        for i, ration in rations.items():
            taken = min(ration, claims[i].wanted_tokens - given[i])
            given[i] += taken
            eaten += taken
        left -= eaten
        if not eaten:
            break
    return tuple(given)


def top_up(left_tokens: int, claims: Sequence[Claim], least_tokens: int) -> tuple[int, ...]:
    """claims: (k,) -> (k,) more tokens for each: as `share_budget`, but a share is no smaller than
    `least_tokens` (or all that is wanted). Where it would be, the surest claim gets nothing.
    """
    asking = [i for i, claim in enumerate(claims) if claim.wanted_tokens > 0]
    asking.sort(key=lambda i: claims[i].certainty or 0.0)
    while asking:
        shares = share_budget(left_tokens, [claims[i] for i in asking])
        enough = (min(least_tokens, claims[i].wanted_tokens) for i in asking)
        if all(share >= least for share, least in zip(shares, enough, strict=True)):
            given = dict(zip(asking, shares, strict=True))
            return tuple(given.get(i, 0) for i in range(len(claims)))
        asking.pop()
    return (0,) * len(claims)
