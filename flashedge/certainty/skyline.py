"""The Pareto skyline: the most progress that solved runs of a given certainty needed."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Skyline:
    """A falling staircase: no calibration run at a step's certainty or above needed more.

    Ref: arXiv 2412.20993 App. B.2 (Pareto frontier), Fig. 12 (green curve), G.4.
    """

    steps: tuple[tuple[float, int], ...]
    """(certainty, progress needed). Certainty strictly rises and progress strictly falls."""

    @classmethod
    def fit(cls, runs: Iterable[tuple[float, int]]) -> Skyline:
        """Keep the runs that no other run dominates, i.e. is more certain and needed more.

        runs: (certainty at the detection step, progress from which on the answer stayed right)
        of calibration runs that ended right.
        """
        steps: list[tuple[float, int]] = []
        for certainty, needed in sorted(runs, key=lambda run: (-run[0], -run[1])):
            if not steps or needed > steps[-1][1]:
                steps.append((certainty, needed))
        return cls(steps=tuple(reversed(steps)))

    def look_up(self, certainty: float, cap: int) -> int:
        """Return the most progress that calibration runs at least this certain needed.

        A run more certain than all of them gets what the most certain one needed. Without any
        step the result is `cap`.
        """
        if not self.steps:
            return cap
        return next((need for at, need in self.steps if at >= certainty), self.steps[-1][1])
