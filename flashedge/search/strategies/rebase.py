"""REBASE: the softmax of rewards allots the width to all paths, good ones branch most."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from flashedge.search.apportion import apportion, softmax
from flashedge.search.level_state import BUDGET, LevelState, Move, Shares
from flashedge.search.stepwise import Stepwise
from flashedge.search.tree import ROOT
from flashedge.types import NodeId


@dataclass(frozen=True, slots=True, kw_only=True)
class Rebase(Stepwise):
    """Each path gets width * exp(r / T) / sum of the same; who gets none is pruned.

    temperature: T; 1 is the plain softmax of arXiv 2412.20993 App. A, smaller is greedier;
    `branching` is not used; width: paths of one tree, 0: all n. A tree's answers come all at its
    end, so with one tree there is nothing to save; with more, each begun where the one before has
    ended, their number is what certainty decides (the paper's progress: its Tables 1, 3).
    Departures: shares are rounded by largest remainder, ties to the better path, so that the width
    is met exactly; finished paths give their width back.
    """

    temperature: float = 0.2
    width: int = 0

    @property
    def name(self) -> str:
        return "rebase"

    def first(self, state: LevelState) -> int:
        return min(self.width or self.n, self.n)

    def keep(self, state: LevelState, paths: Sequence[NodeId], width: int) -> Shares:
        weights = softmax([self.score_of(state, node) for node in paths], self.temperature)
        shares = zip(paths, apportion(weights, width), strict=True)
        return tuple((node, count) for node, count in shares if count)

    def share(self, state: LevelState) -> int:
        return self.width_left(state) - state.ended

    def width_left(self, state: LevelState) -> int:
        """Of the tree under way: one whose paths have all ended is not under way."""
        done, width = len(state.complete), self.first(state)
        return min(self.n, (done // width + 1) * width) - done

    def exhausted(self, state: LevelState) -> Move:
        """The tree is whole: the next one, or the vote."""
        left = self.n - len(state.complete)
        if not left:
            return self.vote(state)
        if state.over_budget:
            return self.vote(state, cut_by=BUDGET)
        return self.proceed(state, ((ROOT, min(left, self.first(state))),))
