"""Beam search in which each kept path branches in proportion to its score."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from flashedge.search.apportion import apportion
from flashedge.search.level_state import LevelState, Shares
from flashedge.search.stepwise import Stepwise
from flashedge.types import NodeId


@dataclass(frozen=True, slots=True, kw_only=True)
class DynamicBranching(Stepwise):
    """Keep as many paths as beam search. Each gets one child, and the rest of the width is split
    in proportion to the scores.

    Ref: arXiv 2509.00195 §3.1 and Fig. 11 ("each beam branches proportionally to its verifier
    score"). Departure: shares are rounded so that the width is met exactly.
    """

    @property
    def name(self) -> str:
        return "dynamic_branching"

    def keep(self, state: LevelState, paths: Sequence[NodeId], width: int) -> Shares:
        kept = paths[: -(-width // self.branching)]
        weights = [max(0.0, self.path_score(state, node)) for node in kept]
        return tuple(zip(kept, apportion(weights, width, least=1), strict=True))

    def max_children(self, state: LevelState) -> int:
        """A path with a high score may get nearly all of the width."""
        return self.n - len(state.complete) - state.num_ended
