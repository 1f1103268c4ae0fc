"""One rollout at a time builds the tree of the naive twin, node for node."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest

from flashedge.certainty.policies import Policy, Rule
from flashedge.search.aggregates import AGGREGATES
from flashedge.search.mcts.exits import Exits
from flashedge.search.strategies.mcts import Mcts
from flashedge.types import Limits
from tests.support.naive_mcts import NaiveMcts
from tests.support.search_rig import World, drive


def until(measure: str, least: float, policy: str = "every_step") -> Policy:
    return Rule(policy=policy, detect=2, thresholds=((measure, least),))


POLICIES = [
    None,
    None,
    until("entropy", 2.0),
    until("entropy", 0.5),
    until("reward", 0.5, "static"),
]
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


@pytest.mark.parametrize("block", range(4))
def test_a_single_rollout_builds_the_twins_tree(block: int) -> None:
    for seed in range(100 * block, 100 * block + 100):
        random = Random(seed)
        fields = draw_search(random)
        budget = random.choice([None, None, random.randint(1, 200)])
        limits = Limits(max_path_tokens=random.randint(1, 40), token_budget=budget)
        stop_after = random.choice([None, None, random.randint(0, 60)])
        bounded = fields["aggregate"] in ("prod", "min")
        mine = Mcts(**fields, exits=NEVER if bounded and seed % 2 else Exits())
        told = {"limits": limits, "seed": seed % 7, "stop_after": stop_after}
        one, other = (
            drive(search, **told, world=World(seed), order=Random(seed))
            for search in (mine, NaiveMcts(**fields))
        )
        assert one.tree == other.tree, seed
        assert one.commands == other.commands, seed
        mine_last, its_last = one.states[-1], other.states[-1]
        assert mine_last.rollouts == its_last.rollouts
        assert mine_last.history == its_last.history
        assert mine_last.pending_checkpoints == its_last.pending_checkpoints
