"""Statistics with 95 % bootstrap intervals. The unit of resampling is always the problem."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from itertools import groupby
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


def kendall(left: Sequence[float], right: Sequence[float]) -> float:
    """Rank correlation tau-b, which allows ties; NaN when one side is constant. O(n log n).

    Ref: W. R. Knight, A computer method for calculating Kendall's tau with ungrouped data, 1966.
    """
    pairs = sorted(zip(left, right, strict=True))
    count = len(pairs) * (len(pairs) - 1) // 2
    tied_left = _count_tied_pairs([x for x, _ in pairs])
    tied_both = _count_tied_pairs(pairs)
    ordered, swaps = _sort_and_count([y for _, y in pairs])
    tied_right = _count_tied_pairs(ordered)
    agree = count - tied_left - tied_right + tied_both - 2 * swaps
    spread = (count - tied_left) * (count - tied_right)
    return agree / math.sqrt(spread) if spread else math.nan


def _count_tied_pairs(ordered: Sequence[object]) -> int:
    """Count the pairs of equal values; equal values must be neighbours."""
    sizes = (sum(1 for _ in group) for _, group in groupby(ordered))
    return sum(size * (size - 1) // 2 for size in sizes)


def _sort_and_count(values: list[float]) -> tuple[list[float], int]:
    """Sort by merging, and count the pairs that stood in the wrong order."""
    if len(values) < 2:
        return values, 0
    middle = len(values) // 2
    left, swaps_left = _sort_and_count(values[:middle])
    right, swaps_right = _sort_and_count(values[middle:])
    merged, swaps, at = [], swaps_left + swaps_right, 0
    for value in right:
        while at < len(left) and left[at] <= value:
            merged.append(left[at])
            at += 1
        merged.append(value)
        swaps += len(left) - at
    return merged + left[at:], swaps
