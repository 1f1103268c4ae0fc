"""Whether a search that may exit early draws its next group of paths ahead.

Such a search draws a group, asks its policy, and draws the next group only where the policy is not
sure enough. A group takes as long as its longest path. On an engine with room for both groups, the
search therefore takes nearly twice as long as one that never asks. If the next group is drawn
beside the current one, that time is saved; if the search then ends, its tokens are wasted.

The next group is drawn ahead where that is expected to save more time than it costs, summed over
all programs that run or wait, for each step of the current group:

- this search saves a step of its next group, with the chance that it goes on
- this search's own step takes longer
- the others lose that time too, with the chance that the tokens are wasted; what is used had to be
  drawn at some time

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
    one included. step_s: seconds of a decode step of a batch. All seconds are of one step.
    """
    slower_s = step_s(beside + group.now + group.paths) - step_s(beside + group.now)
    saved_s = group.chance * step_s(beside + group.paths)
    wasted_s = (1.0 - group.chance) * slower_s
    return saved_s > slower_s + (programs - 1) * wasted_s


class ContinuationRate:
    """How often searches go on after a group, which predicts whether the next one does."""

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
