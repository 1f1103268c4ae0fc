"""Best of n and self-consistency: generate n whole answers and vote once."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import ClassVar

from flashedge.certainty.measures import LEAD, measure_lead
from flashedge.search.level import LevelSearch, LevelState, Move
from flashedge.search.tree import ROOT, NodeStatus, Tree
from flashedge.search.voting import BUDGET, MAX_PENDING, Moment
from flashedge.types import NodeId


@dataclass(frozen=True, slots=True, kw_only=True)
class BestOfN(LevelSearch):
    """Generate n whole paths in one level. With a policy each level has as many as it allots. Ref:
    search-and-learn's `best_of_n`; arXiv 2509.00195 §3.1. The vote is weighted by default;
    `selection="best"` is the plain form."""

    name: ClassVar[str] = "best_of_n"

    def choose_initial_width(self, state: LevelState) -> int:
        return min(self.n, state.ask_at)

    def decide(self, state: LevelState) -> Move:
        tree = state.tree.mark(dict.fromkeys(state.level, NodeStatus.COMPLETE))
        state = replace(state, tree=tree, complete=(*state.complete, *state.level))
        if len(state.complete) == self.n:
            return self.vote(self.remember_checkpoint(state))
        if state.is_over_budget:
            return self.vote(state, cut_by=BUDGET)
        return self.proceed(state)

    def resume(self, state: LevelState) -> Move:
        return self.expand(state, ((ROOT, min(self.n, state.ask_at) - len(state.complete)),))

    def remember_checkpoint(self, state: LevelState) -> LevelState:
        """Without a policy, remember a checkpoint after each path but the last, at most
        MAX_PENDING: a policy could have been asked there."""
        if self.policy is not None:
            return state
        ended = state.complete[: min(MAX_PENDING, self.n - 1)]
        tokens = accumulate(state.tree[node].path_tokens for node in ended)
        pending = (
            Moment(progress=i, complete=i, measured=i, tokens=t) for i, t in enumerate(tokens, 1)
        )
        return replace(state, pending_checkpoints=tuple(pending))

    def measure(self, tree: Tree, paths: Sequence[NodeId]) -> dict[str, float]:
        # dataclass(slots=True) makes a new class, which zero-argument super() does not know.
        values = LevelSearch.measure(self, tree, paths)
        lead = measure_lead([tree[n].answer for n in paths], self.n)
        return values if lead is None else {**values, LEAD: lead}


@dataclass(frozen=True, slots=True, kw_only=True)
class SelfConsistency(BestOfN):
    """Take the most frequent answer, ties to the earlier one: without a verifier every path
    weighs the same. Ref: arXiv 2412.20993 App. A. A policy is asked between batches: App. G.4."""

    name: ClassVar[str] = "self_consistency"
    scores_levels: ClassVar[bool] = False
    selection: str = "majority"
