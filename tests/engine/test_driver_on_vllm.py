"""Whole runs on the real engines: the same tree every time, through kills and under every
optimization, and nothing left of what is cancelled."""

import asyncio
import json
import os
import random
import signal
import time
from dataclasses import replace
from typing import Any

import pytest

from flashedge.engine.base import ScoreRequest
from flashedge.engine.vllm.pair import VllmPair
from flashedge.events import EngineRestarted, Event, NodesExpanded, StepCompleted
from flashedge.optimizations import Optimizations
from flashedge.runtime.drive.driver import Driver, Outcome
from flashedge.runtime.drive.engines import Engines, build_engines
from flashedge.runtime.drive.retry import retry_after_restart
from flashedge.runtime.request.early_exit import ExitOptions
from flashedge.runtime.request.validation import Request
from flashedge.search.tree import ROOT, NodeStatus
from flashedge.types import STRATEGIES, Problem, Sampling
from tests.support.engine_rig import assert_idle
from tests.support.paths import DATA
from tests.support.runtime_rig import drive, driver_of, folded, nodes_of
from tests.support.small_searches import spec_of


def problems(name: str, count: int) -> list[Problem]:
    lines = (DATA / name).read_text().splitlines()[:count]
    return [Problem.from_text(json.loads(line)["problem"]) for line in lines]


EASY, (*HARD, UNASKED, UNSCORED) = problems("heldout_easy.jsonl", 8), problems("heldout.jsonl", 10)
BEAM = Request(problem=HARD[0], pair="bundled", n=8, seed=11)
BEST = replace(BEAM, strategy="best_of_n")
SPECS = pytest.mark.parametrize("spec", [BEAM, BEST], ids=lambda spec: spec.strategy)


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


async def test_the_stock_twin_finds_the_same_tree(engines: Engines, stock: Engines) -> None:
    """Where some paths are equal: the stock verifier scores each of them."""
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


async def test_cancels_leave_nothing(engines: Engines) -> None:
    """Ten in mid-decode and ten in mid-score, at random levels. Each run has a seed of its own and
    is hot: what the verifier scored before, it does not score again."""
    each, spec = 10, replace(BEAM, problem=EASY[3], sampling=Sampling(temperature=1.5))
    loop, draw = asyncio.get_running_loop(), random.Random(4)
    expected = await drive(engines, replace(spec, seed=1000))
    began = loop.time()  # not of the first run, which is slow
    await drive(engines, replace(spec, seed=1001))
    whole_s = loop.time() - began
    drafts = await engines.generator.process.call("get_counters")
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
        await asyncio.sleep(draw.random() * draw.choice((0.0, 0.003)))
        decoding += bool(driver.generating._open)
        scoring += bool(driver.scoring.waiting._open)
        task.cancel()
        await asyncio.wait({task})
        assert task.cancelled() or task.result().finish.choice
        if seed % 5 == 0:
            await assert_idle(engines)
    await assert_idle(engines)
    after = await engines.generator.process.call("get_counters")
    assert after["drawn_tokens"] > drafts["drawn_tokens"], "drafts were cancelled, too"
    assert (await drive(engines, replace(spec, seed=1000))).outcome == expected.outcome


@pytest.mark.parametrize("strategy", STRATEGIES)
async def test_every_strategy_answers(engines: Engines, problem: Problem, strategy: str) -> None:
    # hot, since MCTS completes fewer paths where all of them say the same
    spec = spec_of(problem, strategy, early_exit=None, sampling=Sampling(temperature=1.5))
    outcome = (await drive(engines, spec)).outcome
    tree = outcome.tree
    done = [n for n in tree.nodes.values() if n.status is NodeStatus.COMPLETE]
    assert len(done) >= spec.n
    assert outcome.finish.choice in {n.id for n in done}
    assert outcome.history
    assert (await drive(engines, spec)).outcome == outcome


BY_SCORE = replace(BEST, early_exit=ExitOptions())
BY_VOTE = replace(BY_SCORE, strategy="self_consistency", selection="majority")


@pytest.mark.parametrize("spec", [BY_VOTE, BY_SCORE], ids=lambda spec: spec.strategy)
async def test_the_tree_does_not_depend_on_the_load(
    engines: Engines, stock: Engines, spec: Request
) -> None:
    """Alone, all at once, and by a stock loop."""
    specs = [replace(spec, problem=problem) for problem in (*EASY[:3], *HARD[:2])]
    alone = [await drive(engines, each) for each in specs]
    together = await asyncio.gather(*(drive(engines, each) for each in specs))
    cancelled = begun = 0
    for one, other, each in zip(alone, together, specs, strict=True):
        assert other.outcome == one.outcome
        tree = one.outcome.tree
        assert folded(one.events) == nodes_of(tree, each)
        statuses = [node.status for node in tree.children(ROOT)]
        cancelled += statuses.count(NodeStatus.CANCELLED)
        begun += len(statuses)
    assert (await drive(stock, specs[0])).outcome == alone[0].outcome
    assert 0 < cancelled < begun < spec.n * len(specs)
    await assert_idle(engines)


SWITCHED = {
    "none": Optimizations.none(),
    "all": Optimizations(lookahead=True),
    "early": Optimizations(early_scores=True),
    "without early commit": Optimizations(early_scores=True, early_commit=False),
    "without token drafts": Optimizations(token_drafts=False),
    "token by token": Optimizations(joined_tokens=False),
    "without speculation": Optimizations(speculation=False),
    "without one score of equal paths": Optimizations(score_once=False),
}


def make_driver(engines: Engines, problem: Problem, **options: Any) -> Driver:
    spec = spec_of(problem, "mcts", n=6, branching=3, options=options)
    return driver_of(engines, spec, lambda event: None)


@pytest.mark.parametrize("parallel", [1, 4])
async def test_every_optimization_builds_the_same_tree(
    pair: VllmPair, engines: Engines, problem: Problem, parallel: int
) -> None:
    outcomes = dict[str, Outcome]()
    for name, switches in SWITCHED.items():
        switched = build_engines(switches, pair, grader=engines.grader)
        driver = make_driver(switched, problem, parallel=parallel)
        outcomes[name] = await driver.run()
        if name == "all":
            assert driver.speculation.kept_tokens > 0
    first = outcomes["none"]
    assert sum(n.status is NodeStatus.COMPLETE for n in first.tree.nodes.values()) >= 6
    assert [name for name, outcome in outcomes.items() if outcome != first] == []
    await assert_idle(pair)
