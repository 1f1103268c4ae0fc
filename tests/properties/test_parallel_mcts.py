"""Parallel rollouts under random schedules, with allowances, exits and stops, checked by
`Schedule`."""

from __future__ import annotations

from collections import Counter
from random import Random
from typing import Any

import pytest

from flashedge.search.mcts.exits import Exits
from flashedge.search.mcts.rollouts import MctsState
from flashedge.search.strategies.mcts import Mcts
from flashedge.types import Limits
from tests.properties.test_mcts_twin import draw_search
from tests.support.mcts_rig import Schedule
from tests.support.search_rig import World

ALLOWANCES = (1, 2, 3, 5, 8)


def draw_parallel(random: Random) -> dict[str, Any]:
    fields = draw_search(random)
    exits = Exits()
    if fields["aggregate"] in ("prod", "min") and random.random() < 0.5:
        exits = Exits(
            positive_exit=random.random() < 0.3,
            accept=random.random(),
            negative_exit=random.random() < 0.5,
            cut_rollouts=random.random() < 0.5,
            futile=random.choice([0.01, 0.05, 0.2]),
        )
    return {**fields, "parallel": random.randint(1, 8), "exits": exits}


def draw_limits(random: Random) -> Limits:
    budget = random.choice([None, None, random.randint(1, 200)])
    return Limits(max_path_tokens=random.randint(1, 40), token_budget=budget)


@pytest.mark.parametrize("block", range(10))
def test_no_schedule_leaks_or_exceeds_its_allowance(block: int) -> None:
    seen: Counter[str] = Counter()
    for seed in range(100 * block, 100 * block + 100):
        random = Random(seed)
        schedule = Schedule(
            search=Mcts(**draw_parallel(random), take=random.choice(["launch", "arrival"])),
            world=World(seed),
            random=random,
            limits=draw_limits(random),
            allowances=random.choice([(), ALLOWANCES]),
            stop_after=random.choice([None, None, None, random.randint(0, 60)]),
        )
        state, _ = schedule.play()
        seen["cancelled"] += state.num_cancelled
        seen["late"] += len(schedule.late)
        seen["waits"] += state.num_waits
        seen["full"] += schedule.most_in_flight >= 4
    assert all(seen[name] > 0 for name in ("cancelled", "late", "waits", "full")), seen


@pytest.mark.parametrize("block", range(4))
def test_seed_and_p_fix_the_tree_whatever_arrives_first(block: int) -> None:
    changed = 0
    for seed in range(50 * block, 50 * block + 50):
        random = Random(seed)
        fields, limits = draw_parallel(random), draw_limits(random)

        def play(order: int, allowances: tuple[int, ...] = (), **more: Any) -> MctsState:
            schedule = Schedule(
                search=Mcts(**fields, **more),  # noqa: B023
                world=World(seed),  # noqa: B023
                random=Random(order),
                limits=limits,  # noqa: B023
                allowances=allowances,
            )
            state, _ = schedule.play()
            return state

        assert play(1) == play(2)
        first = play(3, ALLOWANCES)
        assert play(4, script=first.changes) == first
        changed += len(first.changes)
    assert changed > 50


def test_results_taken_by_arrival_depend_on_the_order() -> None:
    search = Mcts(n=12, branching=3, max_step_tokens=5, max_steps=5, parallel=4, take="arrival")
    trees = []
    for order in range(6):
        state, _ = Schedule(search=search, world=World(3), random=Random(order)).play()
        trees.append(state.tree)
    assert any(tree != trees[0] for tree in trees)
