"""What runs beside a search: plain requests that arrive at random, quotas that move, offloads."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from random import Random
from typing import TYPE_CHECKING

from flashedge.engine.base import ExtendRequest, ScoreRequest
from flashedge.runtime.request.validation import Request
from scripts.bench.determinism.scenario import VOCABULARY

if TYPE_CHECKING:
    from scripts.bench.determinism.stepped_pair import SteppedPair


@asynccontextmanager
async def disturb(
    pair: SteppedPair, spec: Request, others: int, draw: Random
) -> AsyncIterator[None]:
    """Load both engines while the block runs. others: plain requests that are open at any time, to
    each of them."""
    load = [_generate(pair, spec, Random(draw.random())) for _ in range(others)]
    load += [_score(pair, spec, Random(draw.random())) for _ in range(others)]
    load.append(_move_memory(pair, Random(draw.random())))
    tasks = [asyncio.create_task(work) for work in load]
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
        ended = await asyncio.gather(*tasks, return_exceptions=True)
        for engine in (pair.generator, pair.verifier):
            await engine.restore()  # does nothing to one that is not offloaded
        for process in pair.processes.values():
            await process.drain()
        for error in ended:
            if isinstance(error, Exception):
                raise error


async def _generate(pair: SteppedPair, spec: Request, draw: Random) -> None:
    """One plain request after another, every other one for the search's own problem."""
    prompt = pair.generator.codec.encode_chat(spec.problem.messages)
    while True:
        await _wait(draw)
        other = tuple(draw.choices(VOCABULARY, k=draw.randint(4, 140)))
        request = ExtendRequest(
            token_ids=prompt if draw.random() < 0.5 else other,
            seed=draw.randrange(1 << 30),
            sampling=spec.sampling,
            max_tokens=draw.randint(8, 60),
            to_boundary=False,
        )
        async for _ in pair.generator.extend(request):
            pass


async def _score(pair: SteppedPair, spec: Request, draw: Random) -> None:
    while True:
        await _wait(draw)
        steps = tuple(
            f"{draw.randint(1, 99)} + {draw.randint(1, 99)} = {draw.randint(1, 99)}.\n\n"
            for _ in range(draw.randint(1, 6))
        )
        await pair.verifier.score(ScoreRequest(problem=spec.problem, steps=steps))


async def _move_memory(pair: SteppedPair, draw: Random) -> None:
    """Take half of what the requests hold from an engine, or all of it to host memory."""
    while True:
        await _wait(draw)
        engine = draw.choice((pair.generator, pair.verifier))
        view = await engine.view()
        if draw.random() < 0.3:
            await engine.offload(keep=draw.random() < 0.7)
            await _wait(draw)
            await engine.restore()
        scheduler = pair.processes[engine.options.name].core.scheduler
        scheduler.kv.set_quota(view.blocks_used // 2)
        await _wait(draw)
        scheduler.kv.set_quota(view.blocks_total)


async def _wait(draw: Random) -> None:
    for _ in range(draw.randrange(20)):
        await asyncio.sleep(0)
