"""Best of n: n whole answers, scored step by step, one vote."""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import accumulate

from flashedge.search.level import LevelSearch
from flashedge.search.level_checkpoints import MAX_NOTED
from flashedge.search.level_state import BUDGET, NOTHING, LevelState, Move, PendingCheckpoint
from flashedge.search.tree import ROOT, NodeStatus
from flashedge.types import Granularity, NodeId


@dataclass(frozen=True, slots=True, kw_only=True)
class BestOfN(LevelSearch):
    """One level of whole paths; under a policy in groups, as large as it allots them.

    Ref: search-and-learn's `best_of_n`; arXiv 2509.00195 §3.1. The vote is weighted by default,
    like the other searches'; `selection="best"` is the plain form.
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

    def first(self, state: LevelState) -> int:
        return min(self.n, state.ask_at)

    def decide(self, state: LevelState) -> Move:
        tree = state.tree.mark(dict.fromkeys(state.level, NodeStatus.COMPLETE))
        state = replace(state, tree=tree, complete=(*state.complete, *state.level))
        if len(state.complete) == self.n:
            return self.vote(self.note(state))
        if state.over_budget:
            return self.vote(state, cut_by=BUDGET)
        return self.proceed(state)

    def note(self, state: LevelState) -> LevelState:
        """A policy could have been asked after each path of the level."""
        if self.policy is not None:
            return state
        tree = state.tree
        tokens = accumulate(tree[node].path_tokens for node in state.complete[:MAX_NOTED])
        passed = (
            PendingCheckpoint(complete=i, rollouts=0, tokens=t) for i, t in enumerate(tokens, 1)
        )
        return replace(state, passed=tuple(passed)[: self.n - 1])

    def resume(self, state: LevelState) -> Move:
        """The next group."""
        return self._expand(state, ((ROOT, min(self.n, state.ask_at) - len(state.complete)),))
