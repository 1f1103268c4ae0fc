"""KV that waits in host memory, or is dropped, changes no token and no score."""

from __future__ import annotations

import asyncio

import pytest

from flashedge.engine.base import Generator, ScoreRequest, Verifier
from flashedge.types import Problem
from tests.support.engine_rig import (
    ask,
    drawn,
    first_chunk,
    generate,
    generate_all,
    long_requests,
    score_whole,
    settle,
    some_steps,
)

KEPT = pytest.mark.parametrize("keep", [True, False], ids=["kept", "dropped"])


class OffloadContract:
    @KEPT
    async def test_offloading_in_mid_decode_changes_no_token(
        self, generator: Generator, problem: Problem, keep: bool
    ) -> None:
        requests = await long_requests(generator, problem)
        free = await generate_all(generator, requests)
        running = asyncio.create_task(generate_all(generator, requests))
        while not (await generator.view()).blocks_used:  # noqa: ASYNC110
            await asyncio.sleep(0.001)
        saved = await generator.offload(keep=keep)
        before = await generator.view()
        await asyncio.sleep(0.1)
        assert await generator.view() == before
        assert not running.done()
        assert (saved > 0) == keep
        assert (await generator.restore() > 0) == keep
        assert drawn(await running) == drawn(free)
        await settle(generator)

    async def test_a_request_to_an_offloaded_engine_waits(
        self, generator: Generator, problem: Problem
    ) -> None:
        request = ask(generator, problem, seed=5)
        expected = await generate(generator, request)
        await generator.offload()
        waiting = asyncio.create_task(generate(generator, request))
        await asyncio.sleep(0.1)
        assert not waiting.done()
        await generator.restore()
        assert drawn([await waiting]) == drawn([expected])

    async def test_a_request_cancelled_while_offloaded_leaves_nothing(
        self, generator: Generator, problem: Problem
    ) -> None:
        requests = await long_requests(generator, problem)
        expected = await generate_all(generator, requests)
        started = asyncio.Event()
        running = asyncio.create_task(first_chunk(generator, requests[0], started))
        await started.wait()
        await generator.offload()
        running.cancel()
        await asyncio.wait({running})
        await settle(generator)
        await generator.restore()
        await settle(generator)
        assert drawn(await generate_all(generator, requests)) == drawn(expected)

    async def test_restoring_an_engine_that_is_not_offloaded_does_nothing(
        self, generator: Generator
    ) -> None:
        assert await generator.restore() == 0

    @KEPT
    async def test_scores_are_the_same_across_an_offload(
        self, verifier: Verifier, problem: Problem, keep: bool
    ) -> None:
        name = "Kept" if keep else "Dropped"
        steps = some_steps((await verifier.view()).block_tokens, name)
        whole = await score_whole(verifier, ScoreRequest(problem=problem, steps=steps))
        first = await verifier.score(ScoreRequest(problem=problem, steps=steps[:3]))
        assert (await verifier.offload(keep=keep) > 0) == keep
        assert (await verifier.restore() > 0) == keep
        last = await verifier.score(ScoreRequest(problem=problem, steps=steps, num_scored=3))
        assert (last.cached_tokens > 0) == keep
        assert (*first.scores, *last.scores) == whole.scores
        await settle(verifier)
