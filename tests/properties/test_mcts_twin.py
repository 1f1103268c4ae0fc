"""One rollout at a time builds the tree of the naive twin, node for node."""

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from random import Random
from typing import Any, ClassVar

import pytest

from flashedge.certainty.policies import Policy, Rule
from flashedge.search.aggregates import AGGREGATES
from flashedge.search.level import LevelState, Move, Shares, Stepwise
from flashedge.search.mcts.exits import Exits
from flashedge.search.strategies.mcts import Mcts, compute_priors, compute_puct
from flashedge.search.tree import ROOT, NodeStatus, Tree
from flashedge.search.voting import BUDGET
from flashedge.types import Limits, NodeId, Problem
from tests.support.search_rig import World, drive


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

    def limit_children(self, state: Any) -> int:
        return self.branching

    def find_family(self, state: Any, node: NodeId) -> int:
        return state.tree[node].parent

    def keep(self, state: Any, paths: Sequence[NodeId], width: int) -> Shares:
        return ((paths[0], self.branching),)

    def decide(self, state: Any) -> Move:
        state, unique = self.settle_level(state)
        best = min(
            (n for n in state.level if state.tree[n].status is not NodeStatus.DUPLICATE),
            key=lambda node: (-self.score_path(state, node), node),
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
        active = [n.id for n in tree.nodes.values() if n.status is NodeStatus.ACTIVE]
        unopened = [node for node in active if not tree.children(node)]
        tree = tree.mark(dict.fromkeys(unopened, NodeStatus.PRUNED))
        return self.vote(replace(state, tree=tree))

    def count_progress(self, state: Any) -> int:
        return len(state.rollouts)

    def list_measured(self, state: Any) -> Sequence[NodeId]:
        return state.rollouts or state.complete

    def combine_rewards(self, rewards: Iterable[float]) -> float | None:
        values = list(rewards)
        return math.fsum(values) / len(values) if values else None

    def select(self, state: Any) -> NodeId | None:
        tree, closed = state.tree, count_closed(state)
        visits, values = Counter({ROOT: len(state.rollouts)}), dict[NodeId, float]()
        for end in state.rollouts:
            for at in tree.path(end):
                visits[at.id] += 1
                values[at.id] = values.get(at.id, 0.0) + self.score_path(state, end)
        node = ROOT
        if closed[ROOT]:
            return None
        while children := tree.children(node):
            unique = [c for c in children if c.status is not NodeStatus.DUPLICATE]
            priors: Sequence[float] = (1 / len(unique),) * len(unique)
            if self.prior == "logprob":
                priors = compute_priors([c.segment for c in unique if c.segment is not None])
            ranked: list[tuple[float, NodeId]] = []
            for child, prior in zip(unique, priors, strict=True):
                n = visits[child.id]
                q = values[child.id] / n if n else self.score_path(state, child.id)
                rank = compute_puct(q, prior, visits=n, parent_visits=visits[node], c=self.c)
                if not closed[child.id]:
                    ranked.append((-rank, child.id))
            node = min(ranked)[1]
        return node


def count_closed(state: Any) -> dict[NodeId, bool]:
    """Which nodes lead to no leaf that a rollout can still reach: the naive twin."""
    tree, ended = state.tree, set(state.rollouts)
    closed: dict[NodeId, bool] = {}
    for node in reversed(tuple(tree.nodes.values())):
        if node.status is NodeStatus.DUPLICATE:
            closed[node.id] = True
        elif node.status is NodeStatus.COMPLETE:
            closed[node.id] = node.id in ended
        else:
            children = tree.list_kept(node.id)
            closed[node.id] = bool(children) and all(closed[child.id] for child in children)
    return closed


def until(measure: str, least: float, policy: str = "every_step") -> Policy:
    return Rule(policy=policy, detect=2, thresholds=((measure, least),))


UNTIL = until("entropy", 2.0), until("entropy", 0.5), until("reward", 0.5, "static")
POLICIES = [None, None, *UNTIL]
NEVER = Exits(positive_exit=True, accept=1.5, negative_exit=True, cut_rollouts=True, futile=0.0)
"""Exits that are on and can't fire: the largest reward is 1."""


def draw_search(random: Random) -> dict[str, Any]:
    return {
        "n": random.randint(1, 14),
        "branching": random.randint(1, 5),
        "max_step_tokens": random.randint(1, 10),
        "max_steps": random.randint(1, 6),
        "aggregate": random.choice(AGGREGATES),
        "selection": random.choice(["best", "weighted", "majority"]),
        "c": random.choice([0.0, 0.3, 1.0, 5.0]),
        "prior": random.choice(["logprob", "uniform"]),
        "policy": random.choice(POLICIES),
    }


def draw_limits(random: Random) -> Limits:
    budget = random.choice([None, None, random.randint(1, 200)])
    return Limits(max_path_tokens=random.randint(1, 40), token_budget=budget)


@pytest.mark.parametrize("block", range(4))
def test_a_single_rollout_builds_the_twins_tree(block: int) -> None:
    for seed in range(100 * block, 100 * block + 100):
        random = Random(seed)
        fields, limits = draw_search(random), draw_limits(random)
        stop_after = random.choice([None, None, random.randint(0, 60)])
        bounded = fields["aggregate"] in ("prod", "min")
        mine = Mcts(**fields, exits=NEVER if bounded and seed % 2 else Exits())
        fixed = {"limits": limits, "seed": seed % 7, "stop_after": stop_after}
        one, other = (
            drive(search, **fixed, world=World(seed), order=Random(seed))
            for search in (mine, NaiveMcts(**fields))
        )
        assert (one.tree, one.commands) == (other.tree, other.commands), seed
        for told in ("rollouts", "history", "pending_checkpoints"):
            assert getattr(one.states[-1], told) == getattr(other.states[-1], told), (seed, told)
