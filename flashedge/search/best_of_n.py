"""Best of n: n whole answers, scored step by step, one vote."""

from __future__ import annotations

from dataclasses import dataclass, replace

from flashedge.search.level import NOTHING, LevelSearch, LevelState, Move
from flashedge.search.tree import ROOT, NodeStatus
from flashedge.types import Granularity, NodeId


@dataclass(frozen=True, slots=True, kw_only=True)
class BestOfN(LevelSearch):
    """One level of whole paths. Ref: search-and-learn's `best_of_n`; arXiv 2509.00195 §3.1.

    The vote is weighted by default, like the other searches'; `selection="best"` is the plain form.
    """

    @property
    def name(self) -> str:
        return "best_of_n"

    def granularity(self, state: LevelState, node: NodeId) -> Granularity:
        return Granularity(max_tokens=state.room(node), to_end=True) if node == ROOT else NOTHING

    def ends(self, state: LevelState, node: NodeId) -> bool:
        return True

    def share(self, state: LevelState) -> int:
        return 0

    def decide(self, state: LevelState) -> Move:
        tree = state.tree.mark(dict.fromkeys(state.level, NodeStatus.COMPLETE))
        return self.vote(replace(state, tree=tree, complete=state.level))
