"""Divides M rollouts among the runs that may be boosted.

The score of a run, which decides how many it may have in flight, is

    S = log(1 + Δt) + β · [best reward / acceptance threshold > 0.9]

Δt is the run's age in seconds. The first term favours old runs, so that nothing starves; its
logarithm keeps one of them from taking everything. The second favours runs that are near their end.

Ref: arXiv 2604.00510 §4.4, Algorithm 1, phase 2. Departures: the paper's targets are at least 1
each, so that their sum can exceed M; here it is at most M. No run gets more than it can use.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import floor, log1p

Allocation = dict[str, int]
"""Rollouts in flight by the run's key."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RolloutCandidate:
    """An MCTS run that may get more rollouts in flight."""

    key: str
    arrived_s: float
    branching: int
    """Sequences that one rollout generates at once."""
    most: int
    """Rollouts that it can use at once, at least 1."""
    observed: int = 0
    """Rollouts that have ended."""
    nearness: float | None = None
    """Its best reward divided by the reward at which it ends early. None if either is missing."""
    path_tokens: int = 0
    """Tokens of prompt and path that one rollout holds at its longest."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BoostState:
    """How the rollouts of a pair are divided now, for users."""

    pair: str
    budget: int
    """M: rollouts of all its boosted runs together."""
    reason: str
    """Why there are no more."""
    runs: Mapping[str, int]
    """Rollouts that each run may have in flight, by its id."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Allocator:
    """Divides rollouts. Holds configuration only: times and the budget are arguments."""

    beta: float = 2.0
    """A run near its end goes before others that are up to about e^β times as old. The paper gives
    no value. Chosen by hand: with 0.2 nearness would hardly count, with 20 nothing else would."""
    near: float = 0.9
    """A run is near its end above this share of the acceptance threshold."""
    least_observed: int = 1
    """Rollouts that must have ended before a run may have several, since the first may end it."""
    slack: int = 1
    """Rollouts above its target that a run may keep while the budget allows it, so that rollouts
    are not cancelled just because scores grow with time."""

    def rate(self, run: RolloutCandidate, now_s: float) -> float:
        """The score S of a run."""
        is_near = run.nearness is not None and run.nearness > self.near
        return log1p(max(0.0, now_s - run.arrived_s)) + (self.beta if is_near else 0.0)

    def find_most(self, run: RolloutCandidate) -> int:
        """The most rollouts that a run may have in flight."""
        return run.most if run.observed >= self.least_observed else 1

    def plan(
        self, runs: Sequence[RolloutCandidate], granted: Allocation, budget: int, now_s: float
    ) -> Allocation:
        """Divide the budget anew. granted: what each of the runs has now. Returns only the changes,
        runs that shrink first, so that changes in this order never exceed the budget."""
        found = self._settle(runs, granted, budget, now_s)
        changed = [key for key, rollouts in found.items() if rollouts != granted[key]]
        changed.sort(key=lambda key: found[key] > granted[key])
        return {key: found[key] for key in changed}

    def divide(self, runs: Sequence[RolloutCandidate], budget: int, now_s: float) -> Allocation:
        """Give rollouts in the order of the scores: 1 to each run while the budget lasts, then to
        each up to its share ⌊S/ΣS·M⌋, then what is left, one at a time, to runs that can use it."""
        scores = {run.key: self.rate(run, now_s) for run in runs}
        ranked = sorted(runs, key=lambda run: (-scores[run.key], run.arrived_s, run.key))
        found = {run.key: int(at < budget) for at, run in enumerate(ranked)}
        growing = [run for run in ranked if self.find_most(run) > 1]
        total = sum(scores.values())
        left = budget - sum(found.values())
        for run in growing:
            share = floor(scores[run.key] / total * budget) if total else 0
            more = min(left, max(0, min(share, run.most) - found[run.key]))
            found[run.key] += more
            left -= more
        while takers := [run for run in growing if 0 < found[run.key] < run.most][:left]:
            for run in takers:
                found[run.key] += 1
            left -= len(takers)
        return found

    def _settle(
        self, runs: Sequence[RolloutCandidate], granted: Allocation, budget: int, now_s: float
    ) -> Allocation:
        """Let runs keep up to `slack` rollouts above their targets, and raise the others towards
        theirs with what the budget has left. If it is too small for that, all get their targets."""
        target = self.divide(runs, budget, now_s)
        most = {run.key: run.most for run in runs}
        found: Allocation = {}
        for key, rollouts in target.items():
            now = min(granted[key], most[key])
            keeps = rollouts < now <= rollouts + self.slack
            found[key] = now if keeps else min(max(now, 1), rollouts)
        left = budget - sum(found.values())
        if left < 0:
            return target
        for key, rollouts in target.items():
            more = min(left, max(0, rollouts - found[key]))
            found[key] += more
            left -= more
        return found
