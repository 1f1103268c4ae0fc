"""The Pareto skyline: how much runs of a given certainty need at most, learnt from solved runs."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Skyline:
    """A falling staircase. steps: (certainty, progress needed), certainty strictly rising and need
    strictly falling: no calibration run at that certainty or above needed more.

    Ref: arXiv 2412.20993 App. B.2 (Pareto frontier), Fig. 12 (green curve), G.4.
    """

    steps: tuple[tuple[float, int], ...]

    @classmethod
    def fitted(cls, runs: Iterable[tuple[float, int]]) -> Skyline:
        """From (certainty at the detection step, progress at which the answer was right for good) of
        solvable calibration runs: those that no other run dominates (surer and needing more)."""
        steps: list[tuple[float, int]] = []
        for certainty, needed in sorted(runs, key=lambda run: (-run[0], -run[1])):
            if not steps or needed > steps[-1][1]:
                steps.append((certainty, needed))
        return cls(steps=tuple(reversed(steps)))

    def needed(self, certainty: float, cap: int) -> int:
        """The most that calibration runs at least this sure needed; a run surer than all of them
        is taken to need what the surest did; `cap` without any calibration."""
        if not self.steps:
            return cap
        return next((need for at, need in self.steps if at >= certainty), self.steps[-1][1])
