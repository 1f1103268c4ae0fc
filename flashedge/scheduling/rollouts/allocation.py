"""Divides a number of rollouts among runs, by their DOP scores.

Ref: arXiv 2604.00510 Algorithm 1, phase 2. Departures: as printed the targets can sum to more
than M, since each is at least 1; here the sum is at most M, whatever M is. No run gets more
rollouts than it has a use for.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import floor
from typing import Protocol

from flashedge.scheduling.rollouts.contender import Contender
from flashedge.scheduling.rollouts.score import DopScore

Allocation = dict[str, int]
"""Rollouts that each run may have in flight, by its key."""


class Allocator(Protocol):
    """A way to divide rollouts."""

    def divide(self, runs: Sequence[Contender], budget: int, now_s: float) -> Allocation:
        """Rollouts of each run. They sum to `budget` at most; each is at least 1 while the budget
        allows it."""
        ...

    def find_most(self, run: Contender) -> int:
        """The most rollouts that the run may get, at least 1."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class ByScore:
    """Implements `Allocator` as the paper does."""

    score: DopScore = field(default_factory=DopScore)

    least_observed: int = 1
    """Rollouts that must have ended before a run may have several. It keeps runs that one rollout
    decides from being boosted."""

    def find_most(self, run: Contender) -> int:
        return run.most if run.observed >= self.least_observed else 1

    def divide(self, runs: Sequence[Contender], budget: int, now_s: float) -> Allocation:
        """In the order of the scores: 1 for each run, then up to its share ⌊S/ΣS·M⌋, then what is
        left, one at a time."""
        ranked = self.score.rank(list(runs), now_s)
        found = _give_one(ranked, budget)
        growing = [run for run in ranked if self.find_most(run) > 1]
        scores = {run.key: self.score.rate(run, now_s) for run in ranked}
        total = sum(scores.values())
        left = budget - sum(found.values())
        for run in growing:
            share = floor(scores[run.key] / total * budget) if total else 0
            more = min(left, max(0, min(share, run.most) - found[run.key]))
            found[run.key] += more
            left -= more
        return _give_rest(found, growing, left)


@dataclass(frozen=True, slots=True, kw_only=True)
class Fixed:
    """Implements `Allocator`: the same number for every run, whatever is known of it. The naive
    twin of `ByScore`; with 1, rollouts follow each other."""

    each: int = 1

    def find_most(self, run: Contender) -> int:
        return max(1, min(self.each, run.most))

    def divide(self, runs: Sequence[Contender], budget: int, now_s: float) -> Allocation:
        """In the order of arrival, while the budget lasts."""
        ranked = sorted(runs, key=lambda run: (run.arrived_s, run.key))
        found = _give_one(ranked, budget)
        left = budget - sum(found.values())
        for run in ranked:
            more = min(left, max(0, self.find_most(run) - found[run.key]))
            found[run.key] += more
            left -= more
        return found


def _give_one(ranked: Sequence[Contender], budget: int) -> Allocation:
    """1 for each run while the budget lasts, then 0."""
    return {run.key: int(at < budget) for at, run in enumerate(ranked)}


def _give_rest(found: Allocation, growing: Sequence[Contender], left: int) -> Allocation:
    """Give what is left in turns, until nobody has a use for more."""
    while left > 0:
        takers = [run for run in growing if 0 < found[run.key] < run.most][:left]
        if not takers:
            break
        for run in takers:
            found[run.key] += 1
        left -= len(takers)
    return found
