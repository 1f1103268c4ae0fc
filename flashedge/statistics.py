"""Statistics with 95 % bootstrap intervals. The unit of resampling is always the problem."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from typing import TypeVar

T = TypeVar("T")


def mean(values: Sequence[float]) -> float:
    """The mean; NaN without values."""
    return sum(values) / len(values) if values else math.nan


def interval(values: Sequence[float], seed: int = 0, draws: int = 1000) -> tuple[float, float]:
    """The bootstrap 95 % interval of the mean, with one value for each problem."""
    return bootstrap(values, mean, seed=seed, draws=draws)


def bootstrap(
    problems: Sequence[T],
    statistic: Callable[[Sequence[T]], float],
    seed: int = 0,
    draws: int = 200,
) -> tuple[float, float]:
    """The bootstrap 95 % interval of `statistic` over the problems; NaN without problems.

    Draws for which the statistic is NaN are left out.
    """
    if not problems:
        return math.nan, math.nan
    rng = random.Random(seed)
    found = (statistic(rng.choices(problems, k=len(problems))) for _ in range(draws))
    kept = sorted(value for value in found if not math.isnan(value))
    if not kept:
        return math.nan, math.nan
    return kept[int(0.025 * len(kept))], kept[max(0, int(0.975 * len(kept)) - 1)]
