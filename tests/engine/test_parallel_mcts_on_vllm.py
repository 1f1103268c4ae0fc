"""Parallel rollouts on the bundled pair: the same tree under every optimization, and cancelled
requests leave the engines."""

from __future__ import annotations

import asyncio
from random import Random
from typing import Any

import pytest

from flashedge.answers.workers.mathematics import MathGrader
from flashedge.engine.vllm.pair import VllmPair
from flashedge.optimizations import Optimizations
from flashedge.runtime.drive.driver import Driver, Outcome
from flashedge.runtime.drive.engines import build_engines
from flashedge.runtime.request.request import Request
from flashedge.runtime.request.strategies import build_search, find_defaults
from flashedge.search.tree import NodeStatus
from flashedge.types import Problem
from tests.support.engine_rig import settle

pytestmark = pytest.mark.asyncio(loop_scope="session")

SWITCHED = {
    "none": Optimizations.none(),
    "all": Optimizations(lookahead=True),
    "early": Optimizations(early_scores=True),
    "token by token": Optimizations(joined_tokens=False),
    "without speculation": Optimizations(speculation=False),
    "without one score of equal paths": Optimizations(score_once=False),
}


def make_driver(
    pair: VllmPair, problem: Problem, grader: MathGrader, switches: Optimizations, **options: Any
) -> Driver:
    spec = Request(
        problem=problem,
        pair="bundled",
        strategy="mcts",
        n=6,
        branching=3,
        max_path_tokens=192,
        seed=3,
        options=options,
        **find_defaults("mcts"),
    )
    prompt = pair.generator.codec.encode_chat(problem.messages)
    engines = build_engines(switches, pair, grader=grader)
    return Driver(build_search(spec), spec, prompt, engines, lambda event: None)


async def assert_idle(pair: VllmPair) -> None:
    for engine in (pair.generator, pair.verifier):
        await settle(engine, 2.0)
        view = await engine.view()
        assert (view.running, view.waiting, view.blocks_used) == (0, 0, 0)


@pytest.mark.parametrize("parallel", [1, 4])
async def test_every_optimization_builds_the_same_tree(
    pair: VllmPair, problem: Problem, parallel: int
) -> None:
    grader, outcomes = MathGrader(), dict[str, Outcome]()
    try:
        for name, switches in SWITCHED.items():
            driver = make_driver(pair, problem, grader, switches, parallel=parallel)
            outcomes[name] = await driver.run()
            if name == "all":
                assert driver.speculation.kept_tokens > 0
    finally:
        await grader.close()
    first = outcomes["none"]
    assert sum(n.status is NodeStatus.COMPLETE for n in first.tree.nodes.values()) >= 6
    assert {name: outcome == first for name, outcome in outcomes.items()} == dict.fromkeys(
        SWITCHED, True
    )
    await assert_idle(pair)


async def test_cancelled_rollouts_leave_the_engines(pair: VllmPair, problem: Problem) -> None:
    grader, random, tokens = MathGrader(), Random(1), 0
    try:
        for _ in range(3):
            driver = make_driver(pair, problem, grader, Optimizations(), parallel=4)
            run = asyncio.ensure_future(driver.run())
            while not run.done():
                await asyncio.sleep(random.uniform(0.0, 0.02))
                driver.allow(random.choice([1, 2, 5]))
            outcome = await run
            assert outcome.finish.choice in outcome.tree.nodes
            tokens += driver.cancelled_tokens
    finally:
        await grader.close()
    assert tokens > 0
    await assert_idle(pair)


async def test_taking_results_by_arrival_finds_answers_too(
    pair: VllmPair, problem: Problem
) -> None:
    grader = MathGrader()
    try:
        driver = make_driver(
            pair, problem, grader, Optimizations(), parallel=4, take="arrival", prior="uniform"
        )
        outcome = await driver.run()
    finally:
        await grader.close()
    assert outcome.cut_by is None
    assert outcome.finish.answer is not None
