"""Faults of a real engine: stopped, killed in a step and between steps, out of memory.

Its own engine, which counts as hung after five seconds and can be let run out of memory.
"""

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Callable
from dataclasses import replace

import pytest
import pytest_asyncio

from flashedge.engine.base import ExtendRequest
from flashedge.engine.vllm.generator import VllmGenerator
from flashedge.engine.vllm.pair import VllmPair
from flashedge.errors import EngineDead
from flashedge.runtime.drive.retry import retry_after_restart
from flashedge.types import Problem
from scripts.bench.foundation.shortage_trigger import PROCESSORS, find_trigger
from tests.engine.conftest import started
from tests.support.engine_rig import Outcome, ask, drawn, generate, generate_all, settle

HANG_S = 5.0
SEQUENCES = 16
ASKED = 20
"""Requests at once: some wait for a place in the batch."""


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def frail(pair: VllmPair) -> AsyncIterator[VllmGenerator]:
    options = replace(
        pair.generator.options,
        kv_bytes=16 << 20,
        max_num_seqs=SEQUENCES,
        hang_s=HANG_S,
        extra={"logits_processors": PROCESSORS},
    )
    async with started(VllmGenerator(options, pair.generator.codec)) as engine:
        yield engine


@pytest.fixture
def requests(frail: VllmGenerator, problem: Problem) -> list[ExtendRequest]:
    return [ask(frail, problem, seed=seed, max_tokens=60) for seed in range(ASKED)]


@pytest_asyncio.fixture(loop_scope="session")
async def expected(pair: VllmPair, requests: list[ExtendRequest]) -> list[Outcome]:
    return await generate_all(pair.generator, requests)


async def stop_in_step(
    engine: VllmGenerator, requests: list[ExtendRequest]
) -> list[asyncio.Task[Outcome]]:
    """Start the requests, and stop the process while it computes a step with a full batch."""
    tasks = [asyncio.create_task(generate(engine, request)) for request in requests]
    live, pid = engine.process._live, engine.health().pid
    while (view := await engine.view()).running < SEQUENCES or view.waiting < ASKED - SEQUENCES:
        pass
    while True:
        os.kill(pid, signal.SIGSTOP)
        await asyncio.sleep(0.01)
        if live.record.is_in_step:
            return tasks
        os.kill(pid, signal.SIGCONT)
        await asyncio.sleep(0.001)


async def list_suspects(tasks: list[asyncio.Task[Outcome]]) -> list[bool]:
    """Whether each request's error says that it may have ended the engine. All of them fail."""
    ends = await asyncio.gather(*tasks, return_exceptions=True)
    assert {type(end) for end in ends} == {EngineDead}
    return [end.is_suspect for end in ends if isinstance(end, EngineDead)]


async def assert_serves(
    engine: VllmGenerator, requests: list[ExtendRequest], expected: list[Outcome], restarts: int
) -> None:
    """The engine comes back, draws the same tokens, and holds no block afterwards."""
    await engine.wait_ready(60)
    assert engine.health().restarts == restarts
    assert drawn(await generate_all(engine, requests)) == drawn(expected)
    await settle(engine)


async def test_a_stopped_engine_is_killed_and_restarted(
    frail: VllmGenerator, requests: list[ExtendRequest], expected: list[Outcome]
) -> None:
    """One that goes on soon is left alone. The requests of its step are suspects: a step that does
    not end may be theirs."""
    before = frail.health()
    os.kill(before.pid, signal.SIGSTOP)
    await asyncio.sleep(HANG_S / 5)
    os.kill(before.pid, signal.SIGCONT)
    tasks = await stop_in_step(frail, requests)
    assert sorted(await list_suspects(tasks)) == [False] * (ASKED - SEQUENCES) + [True] * SEQUENCES
    assert "hung: no sign of life for 5 s; restart 1" in (frail.health().explain() or "")
    await assert_serves(frail, requests, expected, before.restarts + 1)
    assert frail.health().pid != before.pid


async def test_a_kill_between_steps_blames_nobody(
    frail: VllmGenerator, requests: list[ExtendRequest], expected: list[Outcome]
) -> None:
    """The engine is offloaded, so the requests wait. It stays offloaded over its restart."""
    before = frail.health()
    await frail.offload()
    tasks = [asyncio.create_task(generate(frail, request)) for request in requests]
    while (await frail.view()).waiting < ASKED:
        pass
    os.kill(before.pid, signal.SIGKILL)
    assert await list_suspects(tasks) == [False] * ASKED
    await frail.wait_ready(60)
    await frail.restore()
    await assert_serves(frail, requests, expected, before.restarts + 1)


async def test_an_engine_out_of_memory_goes_on_with_half_of_the_batch(
    frail: VllmGenerator, requests: list[ExtendRequest], expected: list[Outcome]
) -> None:
    """Every request is asked again until it is done, as a run does."""
    before = frail.health()
    find_trigger(before.pid).touch()
    waits: list[float] = []

    def ask_again(request: ExtendRequest) -> Callable[[], asyncio.Future[Outcome]]:
        return lambda: asyncio.ensure_future(generate(frail, request))

    found = await asyncio.gather(
        *(retry_after_restart(frail, ask_again(request), waits.append) for request in requests)
    )
    assert drawn(found) == drawn(expected)
    after = frail.health()
    assert after.restarts == before.restarts + 1
    assert len(waits) == ASKED
    assert "ran out of memory (OutOfMemoryError: CUDA out of memory." in (after.detail or "")
    assert "a step holds 8 sequences instead of 16" in (after.explain() or "")
    tasks = [asyncio.create_task(generate(frail, request)) for request in requests]
    while not (view := await frail.view()).waiting:
        pass
    assert view.running <= SEQUENCES // 2
    await asyncio.gather(*tasks)
    await settle(frail)
