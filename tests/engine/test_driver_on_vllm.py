"""Whole runs on the real engines: the same tree every time, through kills, and nothing left of
cancelled ones."""

from __future__ import annotations

import asyncio
import json
import os
import random
import signal
import time
from dataclasses import replace

import pytest

from flashedge.engine.base import ScoreRequest
from flashedge.engine.vllm.pair import VllmPair
from flashedge.events import EngineRestarted, Event, NodesExpanded, StepCompleted
from flashedge.runtime.drive.engines import Engines
from flashedge.runtime.drive.retry import retry_after_restart
from flashedge.runtime.request.request import Request
from flashedge.search.tree import NodeStatus
from flashedge.types import Problem
from tests.support.engine_rig import settle
from tests.support.paths import DATA
from tests.support.runtime_rig import drive, driver_of, folded, nodes_of

pytestmark = pytest.mark.asyncio(loop_scope="session")


def problems(name: str, count: int) -> list[Problem]:
    lines = (DATA / name).read_text().splitlines()[:count]
    return [Problem.from_text(json.loads(line)["problem"]) for line in lines]


EASY, (*HARD, UNASKED, UNSCORED) = problems("heldout_easy.jsonl", 8), problems("heldout.jsonl", 10)
BEAM = Request(problem=HARD[0], pair="bundled", n=8, seed=11)
BEST = replace(BEAM, strategy="best_of_n")
SPECS = pytest.mark.parametrize("spec", [BEAM, BEST], ids=lambda spec: spec.strategy)


async def assert_idle(engines: Engines) -> None:
    for engine in (engines.generator, engines.verifier):
        await settle(engine, 2.0)
        view = await engine.view()
        assert (view.running, view.waiting, view.blocks_used) == (0, 0, 0)


# ---------------------------------------------------------------- the same tree


@SPECS
async def test_twice_and_beside_others(engines: Engines, spec: Request) -> None:
    first = await drive(engines, spec)
    tree = first.outcome.tree
    assert folded(first.events) == nodes_of(tree, spec)
    done = [n for n in tree.nodes.values() if n.status is NodeStatus.COMPLETE]
    assert len(done) == spec.n
    again = await drive(engines, spec)
    assert again.outcome == first.outcome
    others = [
        replace(BEAM if i % 2 else BEST, problem=problem, n=4, seed=i)
        for i, problem in enumerate((*HARD[1:5], *EASY[:4]))
    ]
    story, *_ = await asyncio.gather(*(drive(engines, s) for s in (spec, *others)))
    assert story.outcome == first.outcome
    await assert_idle(engines)


async def test_the_stock_twin_finds_the_same_tree(pair: VllmPair, engines: Engines) -> None:
    """Where some paths are equal: the stock verifier scores each of them."""
    stock = replace(engines, generator=pair.stock_generator, verifier=pair.stock_verifier).switch(
        score_once=False
    )
    equal = 0
    for spec in (BEAM, replace(BEST, problem=HARD[1]), replace(BEAM, problem=EASY[0])):
        ours = await drive(engines, spec)
        assert (await drive(stock, spec)).outcome == ours.outcome
        tree = ours.outcome.tree
        paths = [tree.path_steps(node) for node in tree.nodes]
        equal += len(paths) - len(set(paths))
    assert equal > 0
    await assert_idle(engines)


# ---------------------------------------------------------------- kill -9


@pytest.mark.parametrize("which", ["generator", "verifier"])
async def test_an_engine_killed_in_mid_run(pair: VllmPair, engines: Engines, which: str) -> None:
    """When the second level's first node is generated, or its last: then the scoring begins.

    No other test has the same problem: the verifier is asked, and does not know the scores from
    before. The tree to compare with is made by the stock verifier, which keeps none.
    """
    spec = replace(BEAM, problem=UNASKED if which == "generator" else UNSCORED)
    engine = getattr(engines, which)
    before = engine.health()
    events: list[Event] = []
    level: set[int] = set()

    def emit(event: Event) -> None:
        events.append(event)
        if isinstance(event, NodesExpanded) and event.depth == 2:
            level.update(node for node, _, _ in event.children)
        if isinstance(event, StepCompleted) and event.node in level:
            if which == "generator" or len(level) == 1:
                os.kill(before.pid, signal.SIGKILL)
                level.clear()
            level.discard(event.node)

    outcome = await driver_of(engines, spec, emit).run()
    stock = replace(engines, verifier=pair.stock_verifier).switch(score_once=False)
    expected = await drive(stock, spec)
    assert outcome == expected.outcome
    assert folded(events) == nodes_of(expected.outcome.tree, spec)
    told = [event.engine for event in events if isinstance(event, EngineRestarted)]
    assert told == [which]
    after = engine.health()
    assert (after.state, after.restarts) == ("ready", before.restarts + 1)
    assert after.pid != before.pid
    await assert_idle(engines)


async def test_a_death_that_the_loop_sees_late(engines: Engines, problem: Problem) -> None:
    """vLLM's own watch, a thread, may know of it first: requests are refused then, though the
    engine still says ready. The run waits for the restart all the same."""
    verifier, waited = engines.verifier, list[float]()
    request = ScoreRequest(problem=problem, steps=("Tom has 12.\n\n",))
    before = verifier.health()
    os.kill(before.pid, signal.SIGKILL)
    time.sleep(0.3)  # noqa: ASYNC251
    again = await retry_after_restart(verifier, lambda: verifier.score(request), waited.append)
    assert again.scores == (await verifier.score_whole(request)).scores
    assert verifier.health().restarts == before.restarts + 1


# ---------------------------------------------------------------- cancel


@pytest.mark.parametrize("each", [3, pytest.param(30, marks=pytest.mark.long)])
async def test_cancels_leave_nothing(engines: Engines, each: int) -> None:
    """So many in mid-decode and as many in mid-score, at random levels. Each run has a seed of its
    own: what the verifier scored before, it does not score again. 30 of each take 3 minutes."""
    spec = replace(BEAM, problem=EASY[3])
    loop, draw = asyncio.get_running_loop(), random.Random(4)
    expected = await drive(engines, replace(spec, seed=1000))
    began = loop.time()  # not of the first run, which is slow
    await drive(engines, replace(spec, seed=1001))
    whole_s = loop.time() - began
    decoding = scoring = seed = 0
    while min(decoding, scoring) < each:
        seed += 1
        assert seed < 200
        driver = driver_of(engines, replace(spec, seed=seed), lambda _: None)
        wanted = driver.generating if decoding < each and seed % 2 else driver.scoring.waiting
        task = asyncio.create_task(driver.run())
        await asyncio.sleep(draw.random() * whole_s * 0.3)
        while not wanted._open and not task.done():  # noqa: ASYNC110
            await asyncio.sleep(0.0005)
        await asyncio.sleep(draw.random() * 0.003)
        decoding += bool(driver.generating._open)
        scoring += bool(driver.scoring.waiting._open)
        task.cancel()
        await asyncio.wait({task})
        assert task.cancelled() or task.result().finish.choice
        if seed % 5 == 0:
            await assert_idle(engines)
    await assert_idle(engines)
    assert (await drive(engines, replace(spec, seed=1000))).outcome == expected.outcome
