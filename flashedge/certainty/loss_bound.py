"""How much accuracy an early exit may cost: a one-sided 95 % bound from paired runs."""

from __future__ import annotations

import math
from functools import lru_cache

ALPHA = 0.05
_Z = 1.6448536269514722  # the normal quantile of 1 - ALPHA
_HALVINGS = 50


def min_problems(max_loss: float) -> int:
    """The fewest problems that can show a loss of at most `max_loss`, in (0, 1).

    If a rule loses none of n problems, the exact one-sided 95 % bound (Clopper-Pearson) on the
    share that it loses is 1 - 0.05^(1/n), about 3/n: 299 problems for 0.01, 59 for 0.05.
    """
    return math.ceil(math.log(ALPHA) / math.log1p(-max_loss))


@lru_cache(maxsize=1 << 14)
def bound_loss(lost: int, gained: int, problems: int) -> float:
    """One-sided 95 % upper bound on the loss of accuracy, P(lost) - P(gained).

    lost: problems that only full compute gets right; gained: those that only the rule gets right.
    Inverts the score test for paired proportions. That is too optimistic where few problems differ,
    so the bound is at least the exact one for `lost - gained` losses. Ref: Tango 1998 (score test);
    Clopper and Pearson 1934.
    """
    return max(_score_bound(lost, gained, problems), _exact_bound(max(0, lost - gained), problems))


def _exact_bound(lost: int, problems: int) -> float:
    """The share at which `lost` losses or fewer have a probability of 5 %."""
    low, high = lost / problems, 1.0
    for _ in range(_HALVINGS if lost < problems else 0):
        share = (low + high) / 2
        odds = math.log(share) - math.log1p(-share)
        none = problems * math.log1p(-share)
        at_most = math.fsum(
            math.exp(_log_choose(problems, k) + k * odds + none) for k in range(lost + 1)
        )
        low, high = (share, high) if at_most > ALPHA else (low, share)
    return high


def _score_bound(lost: int, gained: int, problems: int) -> float:
    """The largest loss that the score test does not reject at 5 %."""
    low, high = (lost - gained) / problems, 1.0
    for _ in range(_HALVINGS):
        loss = (low + high) / 2
        # The most likely P(gained) if the loss is `loss`: the root of a quadratic equation.
        linear = (2 * problems - lost + gained) * loss - lost - gained
        constant = gained * loss * (loss - 1)
        root = math.sqrt(max(0.0, linear**2 - 8 * problems * constant))
        gain = (root - linear) / (4 * problems)
        variance = problems * (2 * gain + loss * (1 - loss))
        rejected = (problems * loss - lost + gained) > _Z * math.sqrt(max(0.0, variance))
        low, high = (low, loss) if rejected else (loss, high)
    return high


def _log_choose(n: int, k: int) -> float:
    return math.lgamma(n + 1) - math.lgamma(k + 1) - math.lgamma(n - k + 1)
