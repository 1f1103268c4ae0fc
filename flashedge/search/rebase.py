"""REBASE: the softmax of rewards allots the width to all paths, good ones branch most."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from flashedge.search.apportion import apportion, softmax
from flashedge.search.level_state import LevelState, Shares
from flashedge.search.stepwise import Stepwise
from flashedge.types import NodeId


@dataclass(frozen=True, slots=True, kw_only=True)
class Rebase(Stepwise):
    """Each path gets width * exp(r / T) / sum of the same; who gets none is pruned.

    temperature: T; 1 is the plain softmax of arXiv 2412.20993 App. A, smaller is greedier;
    `branching` is not used. Departures: shares are rounded by largest remainder, ties to the
    better path, so that the width is met exactly; finished paths give their width back.
    """

    temperature: float = 0.2

    @property
    def name(self) -> str:
        return "rebase"

    def keep(self, state: LevelState, paths: Sequence[NodeId], width: int) -> Shares:
        weights = softmax([self.score_of(state, node) for node in paths], self.temperature)
        shares = zip(paths, apportion(weights, width), strict=True)
        return tuple((node, count) for node, count in shares if count)

    def share(self, state: LevelState) -> int:
        return self.n - len(state.complete) - state.ended
