"""The naive twin of `search.strategies.mcts`: one rollout after the other, in levels, with visits
and values that are counted at each selection."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from flashedge.search.level import LevelState, Move, Shares, Stepwise
from flashedge.search.strategies.mcts import logprob_priors, puct
from flashedge.search.tree import ROOT, NodeStatus, Tree
from flashedge.search.voting import BUDGET
from flashedge.types import Limits, NodeId, Problem
from tests.support.mcts_rig import count_closed


@dataclass(frozen=True, slots=True, kw_only=True)
class NaiveState(LevelState):
    rollouts: tuple[NodeId, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class NaiveMcts(Stepwise):
    """A level is the expansion of one node. Visits and values follow from `NaiveState.rollouts`."""

    c: float = 1.0
    prior: str = "logprob"

    name: ClassVar[str] = "mcts"

    def start(self, problem: Problem, seed: int, limits: Limits) -> Move:
        ask_at = self.find_first_ask()
        state = NaiveState(tree=Tree.from_seed(seed), limits=limits, ask_at=ask_at)
        return self.expand(state, ((ROOT, self.branching),))

    def max_children(self, state: Any) -> int:
        return self.branching

    def family(self, state: Any, node: NodeId) -> int:
        parent = state.tree[node].parent
        assert parent is not None, "the root is in no level"
        return parent

    def keep(self, state: Any, paths: Sequence[NodeId], width: int) -> Shares:
        return ((paths[0], self.branching),)

    def decide(self, state: Any) -> Move:
        state, unique = self.settle_level(state)
        best = min(
            (n for n in state.level if state.tree[n].status is not NodeStatus.DUPLICATE),
            key=lambda node: (-self.path_score(state, node), node),
        )
        ended = state.tree[best].status is NodeStatus.COMPLETE
        if ended:
            state = replace(state, rollouts=(*state.rollouts, best))
            if len(state.rollouts) == self.n:
                return self.resume(state)
        if state.is_over_budget:
            return self.vote(state, cut_by=BUDGET)
        return self.proceed(state) if ended else self.expand(state, self.keep(state, unique, 0))

    def resume(self, state: Any) -> Move:
        """Start the next rollout. Those that reach a finished path need no work."""
        while len(state.rollouts) < self.n:
            leaf = self.select(state)
            if leaf is None:
                break
            if state.tree[leaf].status is NodeStatus.ACTIVE:
                return self.expand(state, ((leaf, self.branching),))
            state = replace(state, rollouts=(*state.rollouts, leaf))
            if len(state.rollouts) == self.n:
                break
            state = self.remember_checkpoint(state)
            if self.is_policy_due(state):
                if state.clustered != state.complete:
                    return self.proceed(state)
                state, continues = self.consult(state)
                if not continues:
                    return self.finish(state)
        tree = state.tree
        unopened = [
            n.id
            for n in tree.nodes.values()
            if n.status is NodeStatus.ACTIVE and not tree.children(n.id)
        ]
        tree = tree.mark(dict.fromkeys(unopened, NodeStatus.PRUNED))
        return self.vote(replace(state, tree=tree))

    # ------------------------------------------------------------ certainty

    def progress(self, state: Any) -> int:
        return len(state.rollouts)

    def measured_paths(self, state: Any) -> Sequence[NodeId]:
        return state.rollouts or state.complete

    def reward(self, rewards: Iterable[float]) -> float | None:
        values = list(rewards)
        return math.fsum(values) / len(values) if values else None

    # ------------------------------------------------------------ selection

    def visits(self, state: Any) -> Mapping[NodeId, int]:
        visits = Counter(node.id for end in state.rollouts for node in state.tree.path(end))
        visits[ROOT] = len(state.rollouts)
        return visits

    def values(self, state: Any) -> Mapping[NodeId, float]:
        total: dict[NodeId, float] = {}
        for end in state.rollouts:
            reward = self.path_score(state, end)
            for node in state.tree.path(end):
                total[node.id] = total.get(node.id, 0.0) + reward
        return total

    def select(self, state: Any) -> NodeId | None:
        tree, visits, values = state.tree, self.visits(state), self.values(state)
        closed = count_closed(state)
        node = ROOT
        if closed[ROOT]:
            return None
        while children := tree.children(node):
            unique = [c for c in children if c.status is not NodeStatus.DUPLICATE]
            segments = [c.segment for c in unique if c.segment is not None]
            uniform = self.prior == "uniform"
            share = 1 / len(unique)
            priors = (share,) * len(unique) if uniform else logprob_priors(segments)
            ranked: list[tuple[float, NodeId]] = []
            for child, prior in zip(unique, priors, strict=True):
                n = visits.get(child.id, 0)
                q = values[child.id] / n if n else self.path_score(state, child.id)
                rank = puct(q, prior, visits=n, parent_visits=visits.get(node, 0), c=self.c)
                if not closed[child.id]:
                    ranked.append((-rank, child.id))
            node = min(ranked)[1]
        return node
