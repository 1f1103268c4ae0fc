"""The runs that may be boosted, and how many rollouts each of them may have in flight now.

It has no clock and no engines: times and the budget are arguments. At any time the rollouts of all
runs sum to at most the budget of the last plan.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any

from flashedge.scheduling.rollouts.allocation import Allocation, Allocator
from flashedge.scheduling.rollouts.contender import Contender


@dataclass(frozen=True, slots=True, kw_only=True)
class Move:
    """A run may have another number of rollouts in flight."""

    key: str
    rollouts: int


class RolloutBoard:
    """Keeps contenders and what was granted to them."""

    def __init__(self, allocator: Allocator, slack: int = 1) -> None:
        """slack: a run may keep so many rollouts above its target while the budget allows it, so
        that a score that grows with time cancels nothing."""
        self.allocator = allocator
        self._slack = slack
        self._runs: dict[str, Contender] = {}
        self._granted: dict[str, int] = {}

    def __len__(self) -> int:
        return len(self._runs)

    def __contains__(self, key: str) -> bool:
        return key in self._runs

    @property
    def runs(self) -> tuple[Contender, ...]:
        """All of them, in the order in which they came."""
        return tuple(self._runs.values())

    @property
    def granted(self) -> Mapping[str, int]:
        """Rollouts that each run may have in flight, by key. A run has 0 until the first plan."""
        return MappingProxyType(self._granted)

    def add(self, run: Contender) -> None:
        """Raises ValueError for a key that is here already."""
        if run.key in self._runs:
            raise ValueError(f"run {run.key!r} is on the board already")
        self._runs[run.key] = run
        self._granted[run.key] = 0

    def update(self, key: str, **changes: Any) -> bool:
        """Change what is known of a run. False, and nothing changes, where it is gone or nothing
        is new."""
        before = self._runs.get(key)
        if before is None:
            return False
        self._runs[key] = replace(before, **changes)
        return self._runs[key] != before

    def remove(self, key: str) -> None:
        """The run is over, and its rollouts are free. Does nothing where it is gone."""
        self._runs.pop(key, None)
        self._granted.pop(key, None)

    def plan(self, budget: int, now_s: float) -> tuple[Move, ...]:
        """Divide the budget. Returns what changes, runs that shrink first: whoever tells the runs
        in this order never exceeds the budget."""
        target = self.allocator.divide(self.runs, budget, now_s)
        found = self._settle(target, budget)
        moves = [
            Move(key=key, rollouts=rollouts)
            for key, rollouts in found.items()
            if rollouts != self._granted[key]
        ]
        moves.sort(key=lambda move: move.rollouts > self._granted[move.key])
        self._granted.update(found)
        return tuple(moves)

    def _settle(self, target: Allocation, budget: int) -> Allocation:
        """Let runs keep up to `slack` rollouts above their target, if all others can still have at
        least what they have, and one."""
        found: Allocation = {}
        for key, rollouts in target.items():
            now = min(self._granted[key], self._runs[key].most)
            keeps = rollouts < now <= rollouts + self._slack
            found[key] = now if keeps else min(max(now, 1), rollouts)
        left = budget - sum(found.values())
        if left < 0:
            return target
        for key, rollouts in target.items():
            more = min(left, max(0, rollouts - found[key]))
            found[key] += more
            left -= more
        return found
