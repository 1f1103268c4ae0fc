"""Speculation and lookahead on the real engines: drafts never change a tree, a token or a
log-probability, and none is left behind."""

import asyncio
import os
import signal
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import pytest
import pytest_asyncio

from flashedge.engine.base import ExtendRequest
from flashedge.engine.vllm.generator import VllmGenerator
from flashedge.engine.vllm.pair import VllmPair
from flashedge.events import Event, StepCompleted
from flashedge.runtime.drive.driver import Outcome
from flashedge.runtime.drive.engines import Engines
from flashedge.runtime.request.validation import Request
from flashedge.scheduling.speculation.drafts import Continuation
from flashedge.types import FinishReason, Granularity, Problem, Speculation
from tests.engine.test_driver_on_vllm import HARD
from tests.support.engine_rig import Outcome as EngineOutcome
from tests.support.engine_rig import ask, assert_idle, generate, generate_all, kept_budgets
from tests.support.runtime_rig import driver_of

STRATEGIES = ("beam", "dvts", "rebase", "dynamic_branching")
WIDE = Request(problem=HARD[0], pair="bundled", n=16, seed=21)


@pytest_asyncio.fixture(loop_scope="session", autouse=True)
async def nothing_stays(engines: Engines) -> AsyncIterator[None]:
    yield
    await assert_idle(engines)


async def run(engines: Engines, spec: Request) -> tuple[Outcome, Speculation]:
    driver = driver_of(engines, spec, lambda event: None)
    return await driver.run(), driver.speculation


async def plain(engines: Engines, spec: Request) -> Outcome:
    outcome, did = await run(engines.switch(speculation=False), spec)
    assert did == Speculation()
    return outcome


@asynccontextmanager
async def count_growth(generator: VllmGenerator) -> AsyncIterator[dict[str, int]]:
    """By how much the engine's counters grow within the block."""
    grown: dict[str, int] = {}
    before = await generator.process.call("get_counters")
    yield grown
    after = await generator.process.call("get_counters")
    grown.update({name: after[name] - before[name] for name in after})


# ---------------------------------------------------------------- the same tree


@pytest.mark.parametrize(
    ("strategy", "n", "count"),
    [
        *((strategy, 4, 1) for strategy in STRATEGIES),
        ("beam", 16, 1),
        *(
            pytest.param(strategy, n, 3, marks=pytest.mark.long)
            for strategy in STRATEGIES
            for n in (4, 16)
        ),
    ],
)
async def test_the_same_tree(
    generator: VllmGenerator, engines: Engines, strategy: str, n: int, count: int
) -> None:
    """With three problems for each strategy and n it takes 4 minutes."""
    for seed, problem in enumerate(HARD[:count]):
        spec = replace(WIDE, problem=problem, strategy=strategy, n=n, seed=seed)
        async with count_growth(generator) as grown:
            expected = await plain(engines, spec)
        assert not any(grown.values())
        async with count_growth(generator) as grown:
            outcome, did = await run(engines, spec)
        assert outcome == expected
        assert (did.kept_steps, did.kept_tokens) == (grown["kept_steps"], grown["kept_tokens"])
        assert grown["drawn_tokens"] == did.drawn_tokens >= did.kept_tokens > 0
        await assert_idle(engines)


async def test_children_of_certain_nodes_are_drafted(
    generator: VllmGenerator, engines: Engines
) -> None:
    commits = certain = 0
    for seed, problem in enumerate(HARD[:3]):
        spec = replace(WIDE, problem=problem, seed=seed)
        async with count_growth(generator) as grown:
            outcome, did = await run(engines.switch(early_scores=True), spec)
        assert outcome == await plain(engines, spec)
        assert grown["certain_tokens"] == did.certain_tokens <= did.kept_tokens
        commits, certain = commits + did.early_commits, certain + did.certain_tokens
    assert commits > 0
    assert certain > 0
    await assert_idle(engines)


@pytest.mark.long
async def test_steps_are_scored_ahead(engines: Engines) -> None:
    """It takes 20 s. Lookahead is off by default, and few drafts are complete in time where the
    slowest steps are short since their tokens are drafted."""
    ahead = 0
    for seed, problem in enumerate(HARD[:2]):
        spec = replace(WIDE, problem=problem, seed=seed)
        outcome, did = await run(engines.switch(lookahead=True, token_drafts=False), spec)
        ahead += did.scored_steps
        assert outcome == await plain(engines, spec)
    assert ahead > 0


# ---------------------------------------------------------------- one request


def continued(request: ExtendRequest, level: int, most: int, *others: int) -> ExtendRequest:
    """The same request, which says that its own stream may go on for so many tokens. others: seeds
    of further children, which may be drafted too."""
    after = Continuation(
        run="r",
        level=level,
        seeds=(request.seed, *others),
        granularity=Granularity(max_tokens=most, to_end=True),
        max_drafts=1 + len(others),
        deterministic=request.deterministic,
    )
    return replace(request, continuation=after)


async def test_a_request_adopts_a_draft_within_its_own_limits(
    generator: VllmGenerator, problem: Problem
) -> None:
    """It ends by its own token limit, not the draft's, and its tokens have the log-probabilities
    that they have without a draft; the next step goes on from there."""
    path: tuple[int, ...] = ()
    for level, limit in enumerate((3, 5, 4, 6)):
        child = ask(generator, problem, seed=1, after=path, max_tokens=limit)
        slow = ask(generator, problem, seed=2 + level, max_tokens=60)
        beams = [continued(request, level, 30) for request in (child, slow)]
        found, _ = await generate_all(generator, beams)
        assert found.speculated_tokens == (limit if level else 0)
        expected = await generate(generator, child)
        assert found.finish is expected.finish is FinishReason.STEP_LIMIT
        assert (found.token_ids, found.logprobs) == (expected.token_ids, expected.logprobs)
        path += found.token_ids
    assert (await generator.speculator.end_run("r"))[0] > len(path)
    assert await generator.speculator.end_run("r") == (0, 0)


async def test_another_sampling_or_seed_adopts_nothing(
    generator: VllmGenerator, problem: Problem
) -> None:
    first = continued(ask(generator, problem, seed=1, max_tokens=4), 0, 20)
    slow = continued(ask(generator, problem, seed=2, max_tokens=40), 0, 20)
    path = (await generate_all(generator, [first, slow]))[0].token_ids
    same = ask(generator, problem, seed=1, after=path, max_tokens=8)
    warm = ask(generator, problem, seed=1, after=path, max_tokens=8, temperature=1.3)
    other = ask(generator, problem, seed=9, after=path, max_tokens=8)
    for request, ahead in ((warm, 0), (other, 0), (same, 8)):
        drafted = await generate(generator, continued(request, 1, 20))
        assert drafted.token_ids == (await generate(generator, request)).token_ids
        assert drafted.speculated_tokens == ahead
    await generator.speculator.end_run("r")


async def test_a_boundary_that_fills_the_context_counts(pair: VllmPair, problem: Problem) -> None:
    """The step ends in BOUNDARY, whether the scheduler finds the boundary or a stop string does."""
    generator, step = pair.generator, ask(pair.generator, problem, max_tokens=64, to_boundary=True)
    first = (await generate(generator, step)).token_ids

    async def find_boundaries(room: int) -> list[tuple[ExtendRequest, EngineOutcome]]:
        """Steps of many lengths that end at a boundary, behind a path that leaves such room."""
        size = generator.max_model_len - len(step.token_ids) - room
        path = (first * (size // len(first) + 1))[-size:]
        fields: dict[str, Any] = {"max_tokens": 99, "to_boundary": True, "temperature": 1.5}
        requests = [ask(generator, problem, seed=s, after=path, **fields) for s in range(32)]
        outcomes = await generate_all(generator, requests)
        found = zip(requests, outcomes, strict=True)
        return [(r, o) for r, o in found if generator.codec.decode(o.token_ids).endswith("\n\n")]

    usual = Counter(len(outcome.token_ids) for _, outcome in await find_boundaries(64))
    full = [
        (request, outcome)
        for room, _ in usual.most_common(6)
        for request, outcome in await find_boundaries(room)
        if len(outcome.token_ids) == room
    ]
    assert full, f"no step ended where the context does; usual lengths: {usual}"
    for request, outcome in full:
        assert outcome.finish is FinishReason.BOUNDARY
        stock = await generate(pair.stock_generator, request)
        assert (stock.token_ids, stock.finish) == (outcome.token_ids, outcome.finish)


@asynccontextmanager
async def quota(generator: VllmGenerator, blocks: int) -> AsyncIterator[None]:
    async with kept_budgets(generator):
        await generator.budget(blocks * (await generator.view()).block_bytes)
        yield


async def test_short_memory_pauses_drafts_and_changes_nothing(
    generator: VllmGenerator, engines: Engines
) -> None:
    """Drafts lose their KV before a standard request has to, and keep their tokens."""
    view = await generator.view()
    least = generator.max_model_len // view.block_tokens + 2
    total: dict[str, int] = {}
    for seed, blocks in enumerate((least, 2 * least)):
        spec = replace(WIDE, problem=HARD[seed], seed=seed)
        expected = await plain(engines, spec)
        async with quota(generator, blocks), count_growth(generator) as grown:
            outcome, _ = await run(engines, spec)
            await assert_idle(engines)
        assert outcome == expected
        total = {name: total.get(name, 0) + count for name, count in grown.items()}
    assert total["kept_steps"] > 0
    assert total["paused"] > 0
    assert total["dropped_kv"] > 0
    assert (await generator.view()).preemptions > view.preemptions


# ---------------------------------------------------------------- others, cancels, death


@pytest.mark.parametrize("is_short", [True, pytest.param(False, marks=pytest.mark.long)])
async def test_runs_beside_each_other(
    generator: VllmGenerator, engines: Engines, is_short: bool
) -> None:
    """Runs start while others speculate, in a memory too small for all of them and, for 20 s, in
    one that is ample. With drafted tokens few steps last long enough to be drafted."""
    view = await generator.view()
    specs = [replace(WIDE, problem=HARD[i], seed=i, n=8) for i in range(3)]
    expected = [await plain(engines, spec) for spec in specs]

    async def later(spec: Request, delay_s: float) -> tuple[Outcome, Speculation]:
        await asyncio.sleep(delay_s)
        return await run(engines.switch(token_drafts=False), spec)

    least = generator.max_model_len // view.block_tokens + 2
    async with quota(generator, least + 12 if is_short else view.blocks_total):
        async with count_growth(generator) as grown:
            runs = await asyncio.gather(*(later(s, 0.15 * i) for i, s in enumerate(specs)))
        assert [outcome for outcome, _ in runs] == expected
        assert sum(did.kept_steps for _, did in runs) == grown["kept_steps"] > 0


async def test_the_engine_dies_with_drafts_in_it(
    generator: VllmGenerator, engines: Engines
) -> None:
    spec = replace(WIDE, problem=HARD[5], seed=8)
    expected = await plain(engines, spec)
    before = generator.health()
    steps = 0

    def emit(event: Event) -> None:
        nonlocal steps
        steps += isinstance(event, StepCompleted)
        if steps == 40 and isinstance(event, StepCompleted):
            os.kill(before.pid, signal.SIGKILL)

    driver = driver_of(engines, spec, emit)
    assert await driver.run() == expected
    assert generator.health().restarts == before.restarts + 1
    did, now = driver.speculation, await generator.process.call("get_counters")
    assert did.drawn_tokens > now["drawn_tokens"], "tokens of the dead process count too"
    assert did.kept_tokens > 0


async def test_a_dead_engine_has_no_drafts(generator: VllmGenerator) -> None:
    before = generator.health()
    os.kill(before.pid, signal.SIGKILL)
    async with asyncio.timeout(5):
        await generator.speculator.drop_unused("r", [1], {3})
        assert await generator.speculator.list_complete("r") == {}
        assert await generator.speculator.end_run("r") == (0, 0)
    await asyncio.sleep(0.1)
    await generator.wait_ready(120)
    assert generator.health().restarts == before.restarts + 1
