"""How sure the lead of a vote is, and how many paths are worth drawing at once until it is.

Needs no calibration, since it looks at the counts alone. If `first` paths gave the most frequent
answer and `second` the next one, and all shares between the two were equally likely before, the
next path gives the first with the chance (first + 1) / (first + second + 2), which is Laplace's
rule. Other answers are left out, so the chance is a little too high where a third one is as
frequent as the second.

Ref: arXiv 2305.11860 §3 (adaptive consistency), which asks whether the first answer is the likelier
one. This asks whether it wins the vote of all paths, which the run would say if it did not stop. To
draw as many paths at once as the count still needs is ours.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections import Counter
from collections.abc import Sequence
from functools import cache

Answers = Sequence[str | None]
"""The cluster of each path that has ended. None: no answer, and no vote."""


def measure_lead(answers: Answers, cap: int) -> float | None:
    """The chance in [0, 1] that the most frequent answer is that of all `cap` paths, too. None when
    no path has an answer."""
    first, second = _count_two(answers)
    return _find_chance(first, second, max(0, cap - len(answers))) if first else None


def count_wanted(answers: Answers, cap: int, least: float) -> int:
    """How many paths should be open at once after these, at most those left of `cap`.

    If all that end from now on gave the most frequent answer, some number of them would raise the
    chance to `least`. Only a share of them will, by Laplace's rule, so as many more are wanted. 0
    where the chance is high enough.
    """
    return _count_wanted(*_count_two(answers), max(0, cap - len(answers)), least)


@cache
def find_most_wanted(cap: int, least: float) -> int:
    """About the most paths that a vote of `cap` wants at once: where two answers have equal
    counts."""
    counts = range(0, cap // 2 + 1, 1 + cap // 64)
    return max(_count_wanted(each, each, cap - 2 * each, least) for each in counts)


def _count_wanted(first: int, second: int, left: int, least: float) -> int:
    def is_sure(more: int) -> bool:
        known = first + more > 0
        return known and _find_chance(first + more, second, left - more) >= least

    needed = bisect_left(range(left), True, key=is_sure)
    return min(left, -(-needed * (first + second + 2) // (first + 1)))


def _find_chance(first: int, second: int, left: int) -> float:
    """The chance that `left` more paths leave the first answer in front, or level.

    The number of them that give the second answer has a Beta-binomial distribution.
    """
    if second + left <= first:
        return 1.0
    whole = log_choose(first + second + left + 1, left)
    logs = (
        log_choose(second + x, x) + log_choose(first + left - x, first) - whole
        for x in range(min(left, (first + left - second) // 2) + 1)
    )
    return min(1.0, math.fsum(map(math.exp, logs)))


def log_choose(n: int, k: int) -> float:
    """The logarithm of a binomial coefficient."""
    return math.lgamma(n + 1) - math.lgamma(k + 1) - math.lgamma(n - k + 1)


def _count_two(answers: Answers) -> tuple[int, int]:
    counts = [count for _, count in Counter(a for a in answers if a is not None).most_common(2)]
    first, second = (*counts, 0, 0)[:2]
    return first, second
