"""One token budget over a batch of problems: uncertain problems get more of it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    wanted_tokens: int
    """Tokens until the problem reaches its cap. 0 if it is finished."""
    certainty: float | None


def share_budget(left_tokens: int, claims: Sequence[Claim]) -> tuple[int, ...]:
    """Divide `left_tokens` among the claims, none of which gets more than it wants.

    claims: (k,) -> (k,) tokens in proportion to 1 - certainty (unknown: 0), at least 0.01. What a
    claim does not want goes to the others. Rounded down, so a few tokens may be left over. Ref:
    arXiv 2412.20993 App. B.2; the formula is ours.
    """
    weights = [max(0.01, 1.0 - (c.certainty or 0.0)) for c in claims]
    shares = [0] * len(claims)
    left = max(0, left_tokens)
    while left:
        unmet = [i for i, c in enumerate(claims) if shares[i] < c.wanted_tokens]
        total = math.fsum(weights[i] for i in unmet)
        offers = {i: int(left * weights[i] / total) for i in unmet}
        spent = 0
        for i, offer in offers.items():
            more = min(offer, claims[i].wanted_tokens - shares[i])
            shares[i] += more
            spent += more
        left -= spent
        if not spent:
            break
    return tuple(shares)


def top_up(left_tokens: int, claims: Sequence[Claim], least_tokens: int) -> tuple[int, ...]:
    """Divide like `share_budget`, but give no share smaller than `least_tokens`.

    A claim that wants less gets all it wants. While some share is too small, the most certain claim
    gets nothing.
    """
    open_claims = [i for i, claim in enumerate(claims) if claim.wanted_tokens > 0]
    open_claims.sort(key=lambda i: claims[i].certainty or 0.0)
    while open_claims:
        shares = share_budget(left_tokens, [claims[i] for i in open_claims])
        enough = (min(least_tokens, claims[i].wanted_tokens) for i in open_claims)
        if all(share >= least for share, least in zip(shares, enough, strict=True)):
            given = dict(zip(open_claims, shares, strict=True))
            return tuple(given.get(i, 0) for i in range(len(claims)))
        open_claims.pop()
    return (0,) * len(claims)
