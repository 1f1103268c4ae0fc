"""REBASE: split the width over all paths by the softmax of their rewards."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from flashedge.search.aggregates import softmax
from flashedge.search.level import LevelState, Move, Shares, Stepwise, apportion
from flashedge.search.tree import ROOT
from flashedge.search.voting import BUDGET
from flashedge.types import NodeId


@dataclass(frozen=True, slots=True, kw_only=True)
class Rebase(Stepwise):
    """Each path gets width * exp(r / T) / sum of the same. A path without a child is pruned.

    `branching` is not used. Ref: arXiv 2412.20993 App. A, Tables 1 and 3. Departures: shares are
    rounded by largest remainder, ties to the better path, so that they sum to the width; finished
    paths free their width for the others.
    """

    name: ClassVar[str] = "rebase"
    temperature: float = 0.2
    """T. 1 is the plain softmax of the paper; smaller values are greedier."""
    width: int = 0
    """Paths per tree; 0 puts all n in one tree, whose answers arrive together, so that no early
    exit saves anything."""

    def initial_width(self, state: LevelState) -> int:
        return min(self.width or self.n, self.n)

    def keep(self, state: LevelState, paths: Sequence[NodeId], width: int) -> Shares:
        weights = softmax([self.path_score(state, node) for node in paths], self.temperature)
        shares = zip(paths, apportion(weights, width), strict=True)
        return tuple((node, count) for node, count in shares if count)

    def remaining_width(self, state: LevelState) -> int:
        """Paths that the current tree has yet to complete."""
        done, width = len(state.complete), self.initial_width(state)
        return min(self.n, (done // width + 1) * width) - done

    def finish_tree(self, state: LevelState) -> Move:
        left = self.n - len(state.complete)
        if not left:
            return self.vote(state)
        if state.is_over_budget:
            return self.vote(state, cut_by=BUDGET)
        return self.proceed(state, ((ROOT, min(left, self.initial_width(state))),))
