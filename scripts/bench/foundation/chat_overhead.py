"""Plain streaming chat through the daemon against the same engine called directly: A B A B.

A: HTTP + SSE by the openai package. B: `AsyncLLM.generate` in this process, same parameters.
Tokens per second of one stream and of 8 at once; time to first token. Medians.
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
from scripts.bench.daemon import daemon, problems, report

ROUNDS = 6
STREAMS = (1, 8)
MAX_TOKENS = 400
Stream = Callable[[str, int], AsyncIterator[int]]  # problem, seed -> tokens of each piece


async def measure(url: str) -> None:
    client = AsyncOpenAI(base_url=f"{url}/v1", api_key="none")
    with tempfile.TemporaryDirectory() as home:
        config = load_config(environ={"FLASHEDGE_HOME": home})
        pair = VllmPair(find_pair("bundled", config), config)
        await pair.start()
        try:
            figures = {}
            for streams in STREAMS:
                sides = {"daemon": through(client), "direct": directly(pair)}
                found: dict[str, list[tuple[float, float]]] = {side: [] for side in sides}
                for round_ in range(ROUNDS + 1):
                    for side, stream in sides.items():
                        figure = await together(stream, streams, round_)
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


async def together(stream: Stream, streams: int, round_: int) -> tuple[float, float]:
    """(tokens per second of all, mean seconds to the first token)."""
    items = problems("heldout", 64)
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


def through(client: AsyncOpenAI) -> Stream:
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
        told = 0
        async for piece in pieces:
            if piece.usage:
                yield piece.usage.completion_tokens - told
            elif piece.choices and piece.choices[0].delta.content:
                told += 1
                yield 1

    return stream


def directly(pair: VllmPair) -> Stream:
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
    with daemon() as served:
        asyncio.run(measure(served.url))


if __name__ == "__main__":
    main()
