"""How much slower is plain streaming chat through the daemon than the engine itself?

    python -m scripts.bench.foundation.chat_overhead

The daemon adds HTTP, server-sent events and a process boundary to every token, so a user pays for
it in tokens per second and in time to the first token. The same problems are streamed in turn
(A B A B) through the daemon by the openai package and from an engine in this process, with the same
parameters, one stream and 8 at once. Medians over rounds; the last line is JSON.
"""

from __future__ import annotations

import asyncio
import statistics
import tempfile
import time
from collections.abc import AsyncIterator, Callable
from contextlib import aclosing

from openai import AsyncOpenAI

from flashedge.config import load_config
from flashedge.engine.base import ExtendRequest
from flashedge.engine.vllm.pair import VllmPair
from flashedge.models.registry import find_pair
from flashedge.types import Message, Sampling
from scripts.bench.daemon import read_problems, report, start_daemon

ROUNDS = 6
STREAMS = (1, 8)
MAX_TOKENS = 400
Stream = Callable[[str, int], AsyncIterator[int]]
"""Yields the number of tokens of each piece. Arguments: problem, seed."""


async def measure(url: str) -> None:
    client = AsyncOpenAI(base_url=f"{url}/v1", api_key="none")
    with tempfile.TemporaryDirectory() as home:
        config = load_config(environ={"FLASHEDGE_HOME": home})
        pair = VllmPair(find_pair("bundled", config), config)
        await pair.start()
        try:
            figures = {}
            for streams in STREAMS:
                sides = {"daemon": stream_by_daemon(client), "direct": stream_by_engine(pair)}
                found: dict[str, list[tuple[float, float]]] = {side: [] for side in sides}
                for round_ in range(ROUNDS + 1):
                    for side, stream in sides.items():
                        figure = await run_streams(stream, streams, round_)
                        if round_:  # the first one warms up
                            found[side].append(figure)
                figures[f"{streams} at once"] = {
                    side: {
                        "tokens_per_s": round(statistics.median(r for r, _ in pairs)),
                        "first_token_ms": round(1e3 * statistics.median(t for _, t in pairs), 1),
                    }
                    for side, pairs in found.items()
                }
        finally:
            await pair.stop()
    report(rounds=ROUNDS, **figures)


async def run_streams(stream: Stream, streams: int, round_: int) -> tuple[float, float]:
    """Return tokens per second of all streams, and mean seconds to the first token."""
    items = read_problems("heldout", 64)
    began = time.perf_counter()

    async def one(index: int) -> tuple[int, float]:
        tokens, first = 0, 0.0
        item = items[(round_ * streams + index) % len(items)]
        async for count in stream(item["problem"], index):
            first = first or time.perf_counter() - began
            tokens += count
        return tokens, first

    done = await asyncio.gather(*(one(i) for i in range(streams)))
    seconds = time.perf_counter() - began
    return sum(t for t, _ in done) / seconds, statistics.mean(f for _, f in done)


def stream_by_daemon(client: AsyncOpenAI) -> Stream:
    async def stream(problem: str, seed: int) -> AsyncIterator[int]:
        pieces = await client.chat.completions.create(
            model="bundled",
            messages=[{"role": "user", "content": problem}],
            seed=seed,
            temperature=0.8,
            max_tokens=MAX_TOKENS,
            stream=True,
            stream_options={"include_usage": True},
        )
        counted = 0
        async for piece in pieces:
            if piece.usage:
                yield piece.usage.completion_tokens - counted
            elif piece.choices and piece.choices[0].delta.content:
                counted += 1
                yield 1

    return stream


def stream_by_engine(pair: VllmPair) -> Stream:
    async def stream(problem: str, seed: int) -> AsyncIterator[int]:
        messages = [Message(role="user", content=problem)]
        request = ExtendRequest(
            token_ids=pair.generator.codec.encode_chat(messages),
            seed=seed,
            sampling=Sampling(temperature=0.8),
            max_tokens=MAX_TOKENS,
            to_boundary=False,
        )
        async with aclosing(pair.generator.extend(request)) as chunks:
            async for chunk in chunks:
                yield len(chunk.token_ids)

    return stream


def main() -> None:
    with start_daemon() as served:
        asyncio.run(measure(served.url))


if __name__ == "__main__":
    main()
