"""Helpers of the engine contracts: run requests, wait, shrink the quota, take the time."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Sequence
from contextlib import aclosing
from dataclasses import dataclass, replace
from typing import Any

from flashedge.engine.base import (
    Engine,
    ExtendRequest,
    Generator,
    ScoreRequest,
    StepScores,
    Verifier,
)
from flashedge.types import FinishReason, Problem, Sampling, TokenIds

STEP_TOKENS = 256
PATH_TOKENS = 512
SHORT = 40


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """All chunks of one request, joined."""

    token_ids: TokenIds
    logprobs: tuple[float, ...]
    finish: FinishReason
    cached_tokens: int
    speculated_tokens: int


class Close(tuple[float, ...]):
    """Log-probabilities or scores that equal others within a rounding error.

    Some CPU kernels choose their tiles by the length of a chunk, so that long prompts which are
    computed again in other chunks differ in the last bits (`engine.vllm.batch_invariance`). KV
    that is lost or mixed up differs by far more.
    """

    TOLERANCE = 1e-4

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, tuple) or len(self) != len(other):
            return False
        return all(abs(a - b) <= self.TOLERANCE for a, b in zip(self, other, strict=True))

    def __ne__(self, other: object) -> bool:
        return not self == other

    __hash__ = tuple.__hash__


def drawn(outcomes: Sequence[Outcome]) -> list[tuple[TokenIds, Close]]:
    """What was drawn: token ids to compare exactly, log-probabilities to compare closely."""
    return [(outcome.token_ids, Close(outcome.logprobs)) for outcome in outcomes]


async def generate(generator: Generator, request: ExtendRequest) -> Outcome:
    """Run one request to its end, checking the shape of its stream."""
    token_ids: list[int] = []
    logprobs: list[float] = []
    finish: FinishReason | None = None
    cached = speculated = 0
    async with aclosing(generator.extend(request)) as chunks:
        async for chunk in chunks:
            assert finish is None, "a chunk follows the last one"
            assert len(chunk.token_ids) == len(chunk.logprobs)
            assert chunk.token_ids or chunk.finish
            cached = cached or chunk.cached_tokens
            token_ids += chunk.token_ids
            logprobs += chunk.logprobs
            finish = chunk.finish
            speculated += chunk.speculated_tokens
    assert finish is not None, "the stream ended without a finish reason"
    return Outcome(
        token_ids=tuple(token_ids),
        logprobs=tuple(logprobs),
        finish=finish,
        cached_tokens=cached,
        speculated_tokens=speculated,
    )


async def generate_all(generator: Generator, requests: list[ExtendRequest]) -> list[Outcome]:
    return list(await asyncio.gather(*(generate(generator, r) for r in requests)))


def ask(
    generator: Generator,
    problem: Problem,
    *,
    seed: int = 1,
    after: TokenIds = (),
    max_tokens: int = SHORT,
    to_boundary: bool = False,
    temperature: float = 0.8,
    **fields: Any,
) -> ExtendRequest:
    """A request for the problem's path `after`. fields: further ones of the request."""
    return ExtendRequest(
        token_ids=(*generator.codec.encode_chat(problem.messages), *after),
        seed=seed,
        sampling=Sampling(temperature=temperature),
        max_tokens=max_tokens,
        to_boundary=to_boundary,
        **fields,
    )


def ask_apart(
    generator: Generator,
    problem: Problem,
    count: int,
    first: int,
    length: int = 600,
    max_tokens: int = 2,
) -> list[ExtendRequest]:
    """Requests that share no KV: with seed s behind `length` times the token `first` + s."""
    paths = [(first + seed,) * length for seed in range(count)]
    return [
        ask(generator, problem, seed=seed, after=path, max_tokens=max_tokens)
        for seed, path in enumerate(paths)
    ]


async def first_chunk(generator: Generator, request: ExtendRequest, started: asyncio.Event) -> None:
    """Set `started` at the first chunk, then read on to the end."""
    async with aclosing(generator.extend(request)) as chunks:
        async for _ in chunks:
            started.set()


async def settle(engine: Engine, timeout_s: float = 10.0) -> None:
    """Wait until the engine holds no request and no block. After a cancel, `timeout_s` should be
    less than the cancelled work would have taken."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(timeout_s):
            while True:
                view = await engine.view()
                if not (view.running or view.waiting or view.blocks_used):
                    return
                await asyncio.sleep(0.005)
    raise AssertionError(f"the engine is not idle: {await engine.view()}")


async def assert_idle(pair: Any) -> None:
    """Neither engine of `pair` holds anything."""
    for engine in (pair.generator, pair.verifier):
        await settle(engine, 2.0)


@contextlib.asynccontextmanager
async def quota_watched(engine: Generator | Verifier) -> AsyncIterator[list[int]]:
    """Check the engine's view throughout the block. Yields the list of observed `blocks_used`."""
    seen: list[int] = []

    async def watch() -> None:
        while True:
            view = await engine.view()
            assert 0 <= view.blocks_used <= view.quota_blocks <= view.blocks_total
            seen.append(view.blocks_used)
            await asyncio.sleep(0.003)

    async with asyncio.TaskGroup() as group:
        watching = group.create_task(watch())
        yield seen
        watching.cancel()
    assert seen


@contextlib.asynccontextmanager
async def kept_budgets(*engines: Generator | Verifier) -> AsyncIterator[None]:
    """After the block the engines have their KV and the budgets that they had before."""
    views = [await engine.view() for engine in engines]
    try:
        yield
    finally:
        for engine, view in zip(engines, views, strict=True):
            await engine.restore()
            await engine.budget(view.quota_blocks * view.block_bytes)


@contextlib.asynccontextmanager
async def squeezed(engine: Generator | Verifier) -> AsyncIterator[None]:
    """Lower the budget to what one request of full length needs, and raise it again."""
    view = await engine.view()
    small = min(engine.max_model_len // view.block_tokens + 2, view.quota_blocks)
    assert await engine.budget(small * view.block_bytes) == small * view.block_bytes
    assert (await engine.view()).quota_blocks == small
    try:
        yield
    finally:
        whole_bytes = view.quota_blocks * view.block_bytes
        assert await engine.budget(whole_bytes) == whole_bytes
        assert (await engine.view()).quota_blocks == view.quota_blocks


async def long_requests(generator: Generator, problem: Problem) -> list[ExtendRequest]:
    """Eight requests that share little, each a third as long as the context allows."""
    heads = await generate_all(
        generator, [ask(generator, problem, seed=s, max_tokens=12) for s in range(8)]
    )
    prompt = len(ask(generator, problem).token_ids)
    filler = max(generator.max_model_len // 3 - prompt - SHORT, 1)
    return [
        ask(generator, problem, seed=s, after=(head.token_ids * filler)[:filler])
        for s, head in enumerate(heads)
    ]


# ---------------------------------------------------------------- verifier


def some_steps(block_tokens: int, name: str = "She", times: int = 1) -> tuple[str, ...]:
    """Four steps, the first longer than a block, or `times` as long."""
    counted = " ".join(f"{name} has {i}." for i in range((block_tokens // 4 + 2) * times))
    return (
        f"{counted}\n\n",
        f"{name} gets 7 more: 12 + 7 = 19.\n\n",
        f"Then {name} gives 4 away: 19 - 4 = 15.\n\n",
        r"The answer is \boxed{15}.",
    )


async def score_by_steps(
    verifier: Verifier, problem: Problem, steps: tuple[str, ...], *, deterministic: bool = False
) -> list[StepScores]:
    """Score one path as a search does, step by step."""
    path = ScoreRequest(problem=problem, steps=steps, deterministic=deterministic)
    return [
        await verifier.score(replace(path, steps=steps[: i + 1], num_scored=i))
        for i in range(len(steps))
    ]


async def score_whole(verifier: Verifier, request: ScoreRequest) -> StepScores:
    """Score without reusing KV, where the engine has a method for that."""
    score = getattr(verifier, "score_whole", verifier.score)
    return await score(request)


async def long_paths(verifier: Verifier, problem: Problem, name: str) -> list[ScoreRequest]:
    """Eight paths that share little, each up to a third as long as the context allows."""
    size = (await verifier.view()).block_tokens
    short = ScoreRequest(problem=problem, steps=some_steps(size, name))
    times = max(1, verifier.max_model_len // (3 * (await verifier.score(short)).tokens))
    return [replace(short, steps=some_steps(size, f"{name}{i}", times)) for i in range(8)]


def joined(parts: list[StepScores]) -> tuple[float, ...]:
    return tuple(score for part in parts for score in part.scores)
