"""What every Generator must do. See `engine_contract`."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from flashedge.engine.base import Generator
from flashedge.errors import ContextOverflow, RequestError
from flashedge.types import FinishReason, Problem
from tests.support.engine_rig import (
    PATH_TOKENS,
    SHORT,
    STEP_TOKENS,
    ask,
    first_chunk,
    generate,
    generate_all,
    long_requests,
    quota_watched,
    settle,
    squeezed,
    timed,
)


class GeneratorContract:
    async def test_the_same_request_has_the_same_answer(
        self, generator: Generator, problem: Problem
    ) -> None:
        request = ask(generator, problem)
        first = await generate(generator, request)
        second = await generate(generator, request)
        assert replace(second, cached_tokens=0) == replace(first, cached_tokens=0)

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
        whole = await generate(generator, ask(generator, problem, max_tokens=SHORT))
        head = await generate(generator, ask(generator, problem, max_tokens=cut))
        assert head.token_ids == whole.token_ids[:cut]
        assert head.finish is FinishReason.STEP_LIMIT
        rest = ask(generator, problem, after=head.token_ids, max_tokens=SHORT - cut)
        tail = await generate(generator, rest)
        assert head.token_ids + tail.token_ids == whole.token_ids
        assert tail.finish is whole.finish

    async def test_child_zero_continues_the_stream_of_its_parent(
        self, generator: Generator, problem: Problem
    ) -> None:
        through = await generate(generator, ask(generator, problem, max_tokens=STEP_TOKENS + SHORT))
        step = ask(generator, problem, max_tokens=STEP_TOKENS, to_boundary=True)
        parent = await generate(generator, step)
        if parent.finish.ends_path:
            pytest.skip("the path ended within its first step")
        child = ask(generator, problem, after=parent.token_ids, max_tokens=SHORT)
        path = parent.token_ids + (await generate(generator, child)).token_ids
        assert path == through.token_ids[: len(path)]

    async def test_other_seeds_differ(self, generator: Generator, problem: Problem) -> None:
        requests = [ask(generator, problem, seed=seed) for seed in range(8)]
        outcomes = await generate_all(generator, requests)
        assert len({o.token_ids for o in outcomes}) > 1

    async def test_greedy_ignores_the_seed(self, generator: Generator, problem: Problem) -> None:
        requests = [ask(generator, problem, seed=seed, temperature=0.0) for seed in (1, 2, 3)]
        outcomes = await generate_all(generator, requests)
        assert len({o.token_ids for o in outcomes}) == 1

    async def test_each_token_has_a_log_probability(
        self, generator: Generator, problem: Problem
    ) -> None:
        outcome = await generate(generator, ask(generator, problem))
        assert len(outcome.logprobs) == len(outcome.token_ids)
        assert all(logprob <= 0.0 for logprob in outcome.logprobs)
        assert any(logprob < 0.0 for logprob in outcome.logprobs)

    async def test_stops_at_the_first_boundary(
        self, generator: Generator, problem: Problem
    ) -> None:
        requests = [
            ask(generator, problem, seed=seed, max_tokens=STEP_TOKENS, to_boundary=True)
            for seed in range(8)
        ]
        outcomes = await generate_all(generator, requests)
        found = [o for o in outcomes if o.finish is FinishReason.BOUNDARY]
        assert found, "no path reached the end of a step"
        for outcome in found:
            assert "\n\n" in generator.codec.decode(outcome.token_ids)
            assert "\n\n" not in generator.codec.decode(outcome.token_ids[:-1])

    async def test_a_boundary_changes_no_token(
        self, generator: Generator, problem: Problem
    ) -> None:
        free = await generate(generator, ask(generator, problem, max_tokens=STEP_TOKENS))
        step = ask(generator, problem, max_tokens=STEP_TOKENS, to_boundary=True)
        bounded = await generate(generator, step)
        assert bounded.token_ids == free.token_ids[: len(bounded.token_ids)]

    async def test_a_step_ends_at_its_token_limit(
        self, generator: Generator, problem: Problem
    ) -> None:
        for to_boundary in (True, False):
            request = ask(generator, problem, max_tokens=3, to_boundary=to_boundary)
            outcome = await generate(generator, request)
            assert outcome.finish is FinishReason.STEP_LIMIT
            assert len(outcome.token_ids) == 3

    async def test_a_path_stops_at_the_end_of_the_answer(
        self, generator: Generator, problem: Problem
    ) -> None:
        room = generator.max_model_len - len(generator.codec.encode_chat(problem.messages))
        requests = [
            ask(generator, problem, seed=seed, max_tokens=min(PATH_TOKENS, room))
            for seed in range(8)
        ]
        outcomes = await generate_all(generator, requests)
        ended = [o for o in outcomes if o.finish is FinishReason.STOP]
        assert ended, "no path reached its end"
        for outcome in ended:
            assert not generator.codec.eos_ids & set(outcome.token_ids[:-1])

    async def test_a_full_context_ends_the_path(
        self, generator: Generator, problem: Problem
    ) -> None:
        path = (await generate(generator, ask(generator, problem, max_tokens=8))).token_ids
        room = 3
        filler = generator.max_model_len - len(ask(generator, problem).token_ids) - room
        after = (path * (filler // len(path) + 1))[:filler]
        requests = [ask(generator, problem, seed=s, after=after, max_tokens=99) for s in range(4)]
        outcomes = await generate_all(generator, requests)
        assert all(o.finish in (FinishReason.LENGTH, FinishReason.STOP) for o in outcomes)
        full = [o for o in outcomes if o.finish is FinishReason.LENGTH]
        assert full
        assert all(len(o.token_ids) == room for o in full)

    async def test_a_path_longer_than_the_context_is_refused(
        self, generator: Generator, problem: Problem
    ) -> None:
        request = ask(generator, problem)
        longest = (request.token_ids * generator.max_model_len)[: generator.max_model_len]
        with pytest.raises(ContextOverflow, match=str(generator.max_model_len)):
            await generate(generator, replace(request, token_ids=longest))
        await settle(generator)

    async def test_an_empty_path_is_refused(self, generator: Generator, problem: Problem) -> None:
        with pytest.raises(RequestError):
            await generate(generator, replace(ask(generator, problem), token_ids=()))
        await settle(generator)

    async def test_closing_the_stream_frees_the_blocks(
        self, generator: Generator, problem: Problem
    ) -> None:
        requests = [ask(generator, problem, seed=s, max_tokens=PATH_TOKENS) for s in range(4)]
        async with timed() as whole:
            await generate_all(generator, requests)
        streams = [generator.extend(request) for request in requests]
        await asyncio.gather(*(anext(stream) for stream in streams))
        assert (await generator.view()).blocks_used > 0
        for stream in streams:
            await stream.aclose()
        await settle(generator, whole.seconds / 2)

    async def test_cancelling_the_task_frees_the_blocks(
        self, generator: Generator, problem: Problem
    ) -> None:
        request = ask(generator, problem, max_tokens=12)
        requests = [ask(generator, problem, seed=s, max_tokens=PATH_TOKENS) for s in range(4)]
        async with timed() as whole:
            await generate_all(generator, requests)
        other = asyncio.create_task(generate(generator, request))
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
        beside = await other
        await settle(generator, whole.seconds / 2)
        assert beside.token_ids == (await generate(generator, request)).token_ids

    async def test_a_prefix_is_reused(self, generator: Generator, problem: Problem) -> None:
        view = await generator.view()
        path = (await generate(generator, ask(generator, problem))).token_ids
        after = path * (view.block_tokens // len(path) + 1)
        if len(ask(generator, problem, after=after).token_ids) >= generator.max_model_len:
            pytest.skip("the context is shorter than two blocks")
        await generate(generator, ask(generator, problem, after=after, max_tokens=1))
        again = await generate(generator, ask(generator, problem, after=after, max_tokens=1))
        assert again.cached_tokens >= view.block_tokens
        assert again.cached_tokens % view.block_tokens == 0

    async def test_the_quota_may_move_during_a_run(
        self, generator: Generator, problem: Problem
    ) -> None:
        requests = await long_requests(generator, problem)
        free = await generate_all(generator, requests)
        async with quota_watched(generator):
            running = asyncio.create_task(generate_all(generator, requests))
            await asyncio.sleep(0.02)
            async with squeezed(generator):
                await asyncio.sleep(0.2)
            outcomes = await running
        assert [o.token_ids for o in outcomes] == [o.token_ids for o in free]
        await settle(generator)

    async def test_all_finish_under_a_small_quota(
        self, generator: Generator, problem: Problem
    ) -> None:
        requests = await long_requests(generator, problem)
        before = (await generator.view()).preemptions
        async with squeezed(generator), quota_watched(generator):
            outcomes = await generate_all(generator, requests)
        assert (await generator.view()).preemptions >= before
        free = await generate_all(generator, requests)
        assert [o.token_ids for o in outcomes] == [o.token_ids for o in free]
        await settle(generator)

    async def test_a_budget_grants_whole_blocks(self, generator: Generator) -> None:
        view = await generator.view()
        asked = view.quota_blocks * view.block_bytes
        assert await generator.budget(asked - 1) == asked - view.block_bytes
        assert await generator.budget(asked) == asked
        assert await generator.budget(2 * view.blocks_total * view.block_bytes) == (
            view.blocks_total * view.block_bytes
        )
        await generator.budget(asked)

    async def test_a_budget_leaves_room_for_one_request(self, generator: Generator) -> None:
        view = await generator.view()
        asked = view.quota_blocks * view.block_bytes
        granted = await generator.budget(0)
        assert granted // view.block_bytes * view.block_tokens >= generator.max_model_len
        await generator.budget(asked)
