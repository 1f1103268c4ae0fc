"""Whether a search that may exit early draws its next group of paths ahead.

Such a search draws a group, asks its policy, and draws the next group only where the policy is not
sure enough. A group takes as long as its longest path, so an engine with room for both is left
half empty, and the search takes nearly twice as long as one that never asks. Drawing the next group
beside the current one mends that, and wastes it where the search then ends.

The next group is drawn ahead where that is expected to save more than it costs, in seconds of all
programs that the engines serve or that wait for them:

- this search saves the steps of its next group, with the chance that it goes on
- every step of the current group takes longer, for this search
- the others wait for wasted tokens only: what is used had to be drawn at some time

Both groups are taken to need the same number of steps. A path's tokens depend on its seed alone, so
the tree is the same. Ours; its rival is the sequential loop of arXiv 2412.20993 App. G.4.
"""

from __future__ import annotations

from dataclasses import dataclass

from flashedge.scheduling.costs.curves import BatchTime


@dataclass(frozen=True, slots=True, kw_only=True)
class NextGroup:
    """A group that could be drawn ahead."""

    now: int
    """Paths of the group that is being drawn."""

    paths: int
    """Paths of the next one."""

    chance: float
    """That the search goes on after the current group."""


def is_worthwhile(group: NextGroup, beside: int, programs: int, step_s: BatchTime) -> bool:
    """Whether drawing the group ahead is expected to save time.

    beside: sequences of the other programs in the engine. programs: those that run or wait, this
    one included. step_s: seconds of a decode step of a batch.
    """
    slower_s = step_s(beside + group.now + group.paths) - step_s(beside + group.now)
    saved_s = group.chance * step_s(beside + group.paths)
    wasted_s = (1.0 - group.chance) * slower_s
    return saved_s > slower_s + (programs - 1) * wasted_s


class GoingOn:
    """Counts how often searches go on after a group, and so predicts it."""

    def __init__(self) -> None:
        self._asked = self._went_on = 0

    def note(self, went_on: bool) -> None:
        """A policy has decided."""
        self._asked += 1
        self._went_on += went_on

    @property
    def chance(self) -> float:
        """The share that went on; a half before anything is known (Laplace's rule)."""
        return (self._went_on + 1) / (self._asked + 2)
