"""What every Verifier must do. See `engine_contract`."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from flashedge.engine.base import ScoreRequest, Verifier
from flashedge.errors import ContextOverflow, PathOverflow
from flashedge.types import Problem
from tests.support.engine_rig import (
    joined,
    long_paths,
    quota_watched,
    score_by_steps,
    score_whole,
    settle,
    some_steps,
    squeezed,
    timed,
)


class VerifierContract:
    async def test_step_by_step_scores_equal_those_of_the_whole_path(
        self, verifier: Verifier, problem: Problem
    ) -> None:
        steps = some_steps((await verifier.view()).block_tokens)
        by_steps = await score_by_steps(verifier, problem, steps)
        whole = await score_whole(verifier, ScoreRequest(problem=problem, steps=steps))
        assert all(len(part.scores) == 1 for part in by_steps)
        assert joined(by_steps) == whole.scores  # bit for bit
        assert all(0.0 <= score <= 1.0 for score in whole.scores)
        assert whole.tokens == by_steps[-1].tokens

    async def test_kv_is_reused(self, verifier: Verifier, problem: Problem) -> None:
        steps = some_steps((await verifier.view()).block_tokens, name="Ann")
        parts = await score_by_steps(verifier, problem, steps)
        assert all(part.cached_tokens > 0 for part in parts[1:])
        assert all(part.cached_tokens < part.tokens for part in parts)

    async def test_several_steps_may_be_scored_at_once(
        self, verifier: Verifier, problem: Problem
    ) -> None:
        steps = some_steps((await verifier.view()).block_tokens, name="Bob")
        first = await verifier.score(ScoreRequest(problem=problem, steps=steps[:1]))
        rest = await verifier.score(ScoreRequest(problem=problem, steps=steps, num_scored=1))
        whole = await score_whole(verifier, ScoreRequest(problem=problem, steps=steps))
        assert first.scores + rest.scores == whole.scores

    async def test_identical_paths_have_identical_scores(
        self, verifier: Verifier, problem: Problem
    ) -> None:
        steps = some_steps((await verifier.view()).block_tokens, name="Eve")
        request = ScoreRequest(problem=problem, steps=steps)
        together = await asyncio.gather(verifier.score(request), verifier.score(request))
        again = await score_whole(verifier, request)
        assert together[0].scores == together[1].scores == again.scores

    async def test_a_batch_changes_no_score(self, verifier: Verifier, problem: Problem) -> None:
        size = (await verifier.view()).block_tokens
        requests = [
            ScoreRequest(problem=problem, steps=some_steps(size, name=f"N{i}")) for i in range(16)
        ]
        batch = await asyncio.gather(*(verifier.score(r) for r in requests))
        for request, together in list(zip(requests, batch, strict=True))[::5]:
            assert (await score_whole(verifier, request)).scores == together.scores

    async def test_a_cancelled_request_frees_its_blocks(
        self, verifier: Verifier, problem: Problem
    ) -> None:
        async with timed() as whole:
            others = await long_paths(verifier, problem, "T")
            await asyncio.gather(*(verifier.score(request) for request in others))
        requests = await long_paths(verifier, problem, "C")
        tasks = [asyncio.create_task(verifier.score(request)) for request in requests]
        await asyncio.sleep(0.001)
        for task in tasks[1:]:
            task.cancel()
        kept = await tasks[0]
        await asyncio.gather(*tasks, return_exceptions=True)
        await settle(verifier, whole.seconds / 2)
        assert (await score_whole(verifier, requests[0])).scores == kept.scores

    async def test_the_quota_may_move_during_a_run(
        self, verifier: Verifier, problem: Problem
    ) -> None:
        requests = await long_paths(verifier, problem, "Q")
        async with quota_watched(verifier):
            running = [asyncio.create_task(verifier.score(request)) for request in requests]
            await asyncio.sleep(0.001)
            async with squeezed(verifier):
                parts = await asyncio.gather(*running)
        free = [await score_whole(verifier, request) for request in requests]
        assert [part.scores for part in parts] == [part.scores for part in free]
        await settle(verifier)

    async def test_a_path_longer_than_the_context_is_refused(
        self, verifier: Verifier, problem: Problem
    ) -> None:
        endless = ScoreRequest(problem=problem, steps=("12 + 7 = 19. " * verifier.max_model_len,))
        with pytest.raises(PathOverflow, match=str(verifier.max_model_len)):
            await verifier.score(endless)
        long = Problem.from_text("12 + 7 = 19. " * verifier.max_model_len)
        with pytest.raises(ContextOverflow, match=str(verifier.max_model_len)) as caught:
            await verifier.score(replace(endless, problem=long))
        assert not isinstance(caught.value, PathOverflow)
        await settle(verifier)

    async def test_a_scored_path_needs_no_work(self, verifier: Verifier, problem: Problem) -> None:
        request = ScoreRequest(problem=problem, steps=("Step.\n\n",), num_scored=1)
        assert (await verifier.score(request)).scores == ()
