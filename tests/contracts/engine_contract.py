"""What every engine must do, run over each implementation.

Subclass the classes in a test module that provides the fixtures

    generator: engine.base.Generator    verifier: engine.base.Verifier    problem: types.Problem

and runs its tests and fixtures on one event loop. The problem's paths should hold a step of at
most STEP_TOKENS tokens and end within PATH_TOKENS (see `engine_rig`). Nothing here depends on the
implementation. Waiting is done by polling, on whatever clock the loop has. A verifier that reuses
KV may have a method `score_whole` that does not; exactness is measured against that.
"""

import asyncio
from dataclasses import replace
from typing import Any

import pytest

from flashedge.engine.base import Generator, ScoreRequest, Verifier
from flashedge.errors import ContextOverflow, PathOverflow, RequestError
from flashedge.types import FinishReason, Problem
from tests.support.engine_rig import (
    PATH_TOKENS,
    SHORT,
    STEP_TOKENS,
    Outcome,
    ask,
    drawn,
    first_chunk,
    generate,
    generate_all,
    joined,
    long_paths,
    long_requests,
    quota_watched,
    score_by_steps,
    score_whole,
    settle,
    some_steps,
    squeezed,
)

KEPT = pytest.mark.parametrize("keep", [True, False], ids=["kept", "dropped"])


async def draw(generator: Generator, problem: Problem, **fields: Any) -> Outcome:
    return await generate(generator, ask(generator, problem, **fields))


async def draw_seeds(
    generator: Generator, problem: Problem, count: int, **fields: Any
) -> list[Outcome]:
    """One answer for each of the seeds from 0 on, drawn in one batch."""
    requests = [ask(generator, problem, seed=seed, **fields) for seed in range(count)]
    return await generate_all(generator, requests)


class GeneratorContract:
    async def test_the_same_request_has_the_same_answer(
        self, generator: Generator, problem: Problem
    ) -> None:
        """Each token has a log-probability. Other seeds differ, unless it is greedy."""
        first = await draw(generator, problem)
        second = await draw(generator, problem)
        assert replace(second, cached_tokens=0) == replace(first, cached_tokens=0)
        assert len(first.logprobs) == len(first.token_ids)
        assert all(logprob <= 0.0 for logprob in first.logprobs)
        assert any(logprob < 0.0 for logprob in first.logprobs)
        outcomes = await draw_seeds(generator, problem, 8)
        assert len({o.token_ids for o in outcomes}) > 1
        greedy = await draw_seeds(generator, problem, 3, temperature=0.0)
        assert len({o.token_ids for o in greedy}) == 1

    async def test_a_batch_changes_no_token(self, generator: Generator, problem: Problem) -> None:
        requests = [ask(generator, problem, seed=s, max_tokens=SHORT + s) for s in range(16)]
        batch = await generate_all(generator, requests)
        for request, together in list(zip(requests, batch, strict=True))[::5]:
            alone = await generate(generator, request)
            assert alone.token_ids == together.token_ids
            assert alone.finish is together.finish

    @pytest.mark.parametrize("cut", [1, 7, 31])
    async def test_a_cut_path_goes_on_with_the_same_tokens(
        self, generator: Generator, problem: Problem, cut: int
    ) -> None:
        whole = await draw(generator, problem, max_tokens=SHORT)
        head = await draw(generator, problem, max_tokens=cut)
        assert head.token_ids == whole.token_ids[:cut]
        assert head.finish is FinishReason.STEP_LIMIT
        tail = await draw(generator, problem, after=head.token_ids, max_tokens=SHORT - cut)
        assert head.token_ids + tail.token_ids == whole.token_ids
        assert tail.finish is whole.finish

    async def test_stops_at_the_first_boundary(
        self, generator: Generator, problem: Problem
    ) -> None:
        outcomes = await draw_seeds(generator, problem, 8, max_tokens=STEP_TOKENS, to_boundary=True)
        found = [o for o in outcomes if o.finish is FinishReason.BOUNDARY]
        assert found, "no path reached the end of a step"
        for outcome in found:
            assert "\n\n" in generator.codec.decode(outcome.token_ids)
            assert "\n\n" not in generator.codec.decode(outcome.token_ids[:-1])

    async def test_a_step_ends_at_its_token_limit(
        self, generator: Generator, problem: Problem
    ) -> None:
        outcome = await draw(generator, problem, max_tokens=3, to_boundary=True)
        assert outcome.finish is FinishReason.STEP_LIMIT
        assert len(outcome.token_ids) == 3

    async def test_a_path_stops_at_the_end_of_the_answer(
        self, generator: Generator, problem: Problem
    ) -> None:
        room = generator.max_model_len - len(generator.codec.encode_chat(problem.messages))
        outcomes = await draw_seeds(generator, problem, 8, max_tokens=min(PATH_TOKENS, room))
        ended = [o for o in outcomes if o.finish is FinishReason.STOP]
        assert ended, "no path reached its end"
        for outcome in ended:
            assert not generator.codec.eos_ids & set(outcome.token_ids[:-1])

    async def test_a_full_context_ends_the_path(
        self, generator: Generator, problem: Problem
    ) -> None:
        path = (await draw(generator, problem, max_tokens=8)).token_ids
        room = 3
        filler = generator.max_model_len - len(ask(generator, problem).token_ids) - room
        after = (path * (filler // len(path) + 1))[:filler]
        outcomes = await draw_seeds(generator, problem, 4, after=after, max_tokens=99)
        assert all(o.finish in (FinishReason.LENGTH, FinishReason.STOP) for o in outcomes)
        full = [o for o in outcomes if o.finish is FinishReason.LENGTH]
        assert full
        assert all(len(o.token_ids) == room for o in full)

    async def test_an_empty_or_too_long_path_is_refused(
        self, generator: Generator, problem: Problem
    ) -> None:
        request = ask(generator, problem)
        longest = (request.token_ids * generator.max_model_len)[: generator.max_model_len]
        with pytest.raises(ContextOverflow, match=str(generator.max_model_len)):
            await generate(generator, replace(request, token_ids=longest))
        with pytest.raises(RequestError):
            await generate(generator, replace(request, token_ids=()))
        await settle(generator)

    async def test_leaving_a_stream_frees_the_blocks(
        self, generator: Generator, problem: Problem
    ) -> None:
        """By closing it, or by cancelling the task that reads it."""
        requests = [ask(generator, problem, seed=s, max_tokens=PATH_TOKENS) for s in range(4)]
        clock = asyncio.get_running_loop().time
        began = clock()
        await generate_all(generator, requests)
        whole_s = clock() - began
        streams = [generator.extend(request) for request in requests]
        await asyncio.gather(*(anext(stream) for stream in streams))
        assert (await generator.view()).blocks_used > 0
        for stream in streams:
            await stream.aclose()
        await settle(generator, whole_s / 2)
        other = asyncio.create_task(draw(generator, problem, max_tokens=12))
        started = [asyncio.Event() for _ in requests]
        tasks = [
            asyncio.create_task(first_chunk(generator, request, event))
            for request, event in zip(requests, started, strict=True)
        ]
        await asyncio.gather(*(event.wait() for event in started))
        for task in tasks:
            task.cancel()
        for ended in await asyncio.gather(*tasks, return_exceptions=True):
            assert ended is None or isinstance(ended, asyncio.CancelledError)
        kept = await other
        await settle(generator, whole_s / 2)
        assert kept.token_ids == (await draw(generator, problem, max_tokens=12)).token_ids

    async def test_a_prefix_is_reused(self, generator: Generator, problem: Problem) -> None:
        view = await generator.view()
        path = (await draw(generator, problem)).token_ids
        after = path * (view.block_tokens // len(path) + 1)
        if len(ask(generator, problem, after=after).token_ids) >= generator.max_model_len:
            pytest.skip("the context is shorter than two blocks")
        await draw(generator, problem, after=after, max_tokens=1)
        again = await draw(generator, problem, after=after, max_tokens=1)
        assert again.cached_tokens >= view.block_tokens
        assert again.cached_tokens % view.block_tokens == 0

    async def test_a_small_quota_changes_no_token(
        self, generator: Generator, problem: Problem
    ) -> None:
        """From the start, or from the middle of a run to its end."""
        requests = await long_requests(generator, problem)
        free = await generate_all(generator, requests)
        before = (await generator.view()).preemptions
        async with quota_watched(generator):
            running = asyncio.create_task(generate_all(generator, requests))
            await asyncio.sleep(0.02)
            async with squeezed(generator):
                await asyncio.sleep(0.2)
            moved = await running
            async with squeezed(generator):
                small = await generate_all(generator, requests)
        assert (await generator.view()).preemptions >= before
        for outcomes in (moved, small):
            assert [o.token_ids for o in outcomes] == [o.token_ids for o in free]
        await settle(generator)

    async def test_a_budget_grants_whole_blocks_and_room_for_one_request(
        self, generator: Generator
    ) -> None:
        view = await generator.view()
        asked = view.quota_blocks * view.block_bytes
        assert await generator.budget(asked - 1) == asked - view.block_bytes
        assert await generator.budget(asked) == asked
        total = view.blocks_total * view.block_bytes
        assert await generator.budget(2 * total) == total
        least = await generator.budget(0)
        assert least // view.block_bytes * view.block_tokens >= generator.max_model_len
        await generator.budget(asked)


class VerifierContract:
    async def test_step_by_step_scores_equal_those_of_the_whole_path(
        self, verifier: Verifier, problem: Problem
    ) -> None:
        """KV of earlier steps is reused. Several steps may be scored at once, or none."""
        steps = some_steps((await verifier.view()).block_tokens, name="Ann")
        by_steps = await score_by_steps(verifier, problem, steps)
        whole = await score_whole(verifier, ScoreRequest(problem=problem, steps=steps))
        assert all(len(part.scores) == 1 for part in by_steps)
        assert joined(by_steps) == whole.scores  # bit for bit
        assert all(0.0 <= score <= 1.0 for score in whole.scores)
        assert whole.tokens == by_steps[-1].tokens
        assert all(part.cached_tokens > 0 for part in by_steps[1:])
        assert all(part.cached_tokens < part.tokens for part in by_steps)
        steps = some_steps((await verifier.view()).block_tokens, name="Bob")
        first = await verifier.score(ScoreRequest(problem=problem, steps=steps[:1]))
        rest = await verifier.score(ScoreRequest(problem=problem, steps=steps, num_scored=1))
        whole = await score_whole(verifier, ScoreRequest(problem=problem, steps=steps))
        assert first.scores + rest.scores == whole.scores
        done = ScoreRequest(problem=problem, steps=("Step.\n\n",), num_scored=1)
        assert (await verifier.score(done)).scores == ()

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
        clock = asyncio.get_running_loop().time
        began = clock()
        others = await long_paths(verifier, problem, "T")
        await asyncio.gather(*(verifier.score(request) for request in others))
        whole_s = clock() - began
        requests = await long_paths(verifier, problem, "C")
        tasks = [asyncio.create_task(verifier.score(request)) for request in requests]
        await asyncio.sleep(0.001)
        for task in tasks[1:]:
            task.cancel()
        kept = await tasks[0]
        await asyncio.gather(*tasks, return_exceptions=True)
        await settle(verifier, whole_s / 2)
        assert (await score_whole(verifier, requests[0])).scores == kept.scores

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


class OffloadContract:
    """KV that waits in host memory, or is dropped, changes no token and no score."""

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
        expected = await draw(generator, problem, seed=5)
        await generator.offload()
        waiting = asyncio.create_task(draw(generator, problem, seed=5))
        await asyncio.sleep(0.1)
        assert not waiting.done()
        await generator.restore()
        assert drawn([await waiting]) == drawn([expected])
        assert await generator.restore() == 0, "it is not offloaded any more"

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
