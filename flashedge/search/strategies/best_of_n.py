"""Best of n: generate n whole answers, score their steps, and vote once."""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import accumulate

from flashedge.certainty.history import LEAD
from flashedge.certainty.lead import measure_lead
from flashedge.search.checkpoints import MAX_PENDING
from flashedge.search.level import LevelSearch
from flashedge.search.level_state import LevelState, Move
from flashedge.search.tree import ROOT, NodeStatus
from flashedge.search.voting_state import BUDGET, NOTHING, PendingCheckpoint
from flashedge.types import Granularity, NodeId


@dataclass(frozen=True, slots=True, kw_only=True)
class BestOfN(LevelSearch):
    """One level of n whole paths. With a policy: groups of paths, as large as it allots.

    Ref: search-and-learn's `best_of_n`; arXiv 2509.00195 §3.1. The vote is weighted by default,
    as in the other searches; `selection="best"` is the plain form.
    """

    @property
    def name(self) -> str:
        return "best_of_n"

    def granularity(self, state: LevelState, node: NodeId) -> Granularity:
        return (
            Granularity(max_tokens=state.remaining_tokens(node), to_end=True)
            if node == ROOT
            else NOTHING
        )

    def ends_path(self, state: LevelState, node: NodeId) -> bool:
        return True

    def max_children(self, state: LevelState) -> int:
        return 0

    def initial_width(self, state: LevelState) -> int:
        return min(self.n, state.ask_at)

    def decide(self, state: LevelState) -> Move:
        tree = state.tree.mark(dict.fromkeys(state.level, NodeStatus.COMPLETE))
        state = replace(state, tree=tree, complete=(*state.complete, *state.level))
        if len(state.complete) == self.n:
            return self.vote(self.remember_checkpoint(state))
        if state.is_over_budget:
            return self.vote(state, cut_by=BUDGET)
        return self.proceed(state)

    def remember_checkpoint(self, state: LevelState) -> LevelState:
        """A policy could have been asked after every path of the level."""
        if self.policy is not None:
            return state
        tree = state.tree
        tokens = accumulate(tree[node].path_tokens for node in state.complete[:MAX_PENDING])
        pending = (
            PendingCheckpoint(complete=i, rollouts=0, tokens=t) for i, t in enumerate(tokens, 1)
        )
        return replace(state, pending_checkpoints=tuple(pending)[: self.n - 1])

    def measures(self, state: LevelState) -> dict[str, float]:
        values = LevelSearch.measures(self, state)
        lead = measure_lead([state.tree[n].answer for n in self.measured_paths(state)], self.n)
        return values if lead is None else {**values, LEAD: lead}

    def resume(self, state: LevelState) -> Move:
        """Generate the next group."""
        return self.expand(state, ((ROOT, min(self.n, state.ask_at) - len(state.complete)),))
