"""Is plain chat through the daemon as fast as `vllm serve` on the same model?

    python -m scripts.bench.foundation.plain_chat [--alternations 20] [--seeded]

Both serve vLLM's own handlers; the daemon adds its guard, tags and counting, and position noise for
requests with a seed (`--seeded`). The openai package streams the same problems from both in turn
(A B A B, the first one changing), 1, 8 and 32 at once, each answer of exactly 128 tokens. A figure
is the median of the alternations' ratios with its 95 % bootstrap interval. The last line is JSON.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from openai import AsyncOpenAI

from flashedge.config import load_config
from flashedge.models.folders import resolve_model
from flashedge.models.registry import find_pair
from flashedge.statistics import bootstrap
from scripts.bench.daemon import find_free_port, read_problems, report, start_daemon
from scripts.card.served import MODEL, build_command, serve

STREAMS = (1, 8, 32)
TOKENS = 128
KV_SHARE = 0.4
"""Of a card's memory, for `vllm serve`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Server:
    client: AsyncOpenAI
    model: str
    seeded: bool
    """Whether its requests have a seed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """One batch of streams."""

    tokens_per_s: float
    """Of all streams together."""
    first_token_s: float
    """Mean time to the first token."""


Pair = tuple[Figures, Figures]
"""The daemon's and vLLM's figures of one alternation."""


async def measure(url: str, alternations: int, *, seeded: bool) -> None:
    config = load_config({})
    entry = find_pair("bundled", config).generator
    port = find_free_port()
    command = build_command(entry, resolve_model(entry, config), port, KV_SHARE, {})
    with tempfile.TemporaryDirectory(prefix="flashedge-serve-") as logs:
        async with serve(command, port, Path(logs) / "log"):
            theirs_url = f"http://127.0.0.1:{port}"
            ours = Server(client=_connect(url), model="bundled", seeded=seeded)
            theirs = Server(client=_connect(theirs_url), model=MODEL, seeded=seeded)
            found = {count: await alternate(ours, theirs, count, alternations) for count in STREAMS}
    report(
        alternations=alternations,
        tokens=TOKENS,
        seeded=seeded,
        streams={str(count): summarize(pairs) for count, pairs in found.items()},
    )


async def alternate(ours: Server, theirs: Server, count: int, alternations: int) -> list[Pair]:
    found: list[Pair] = []
    for round_ in range(alternations + 1):
        order = [ours, theirs] if round_ % 2 else [theirs, ours]
        done = {server.model: await run_streams(server, count, round_) for server in order}
        if round_:  # the first one warms up
            found.append((done[ours.model], done[theirs.model]))
    return found


async def run_streams(server: Server, count: int, round_: int) -> Figures:
    items = read_problems("heldout", 64)
    began = time.perf_counter()

    async def stream(index: int) -> float:
        item = items[(round_ * count + index) % len(items)]
        pieces = await server.client.chat.completions.create(
            model=server.model,
            messages=[{"role": "user", "content": item["problem"]}],
            temperature=0.8,
            max_tokens=TOKENS,
            stream=True,
            extra_body={"ignore_eos": True, **({"seed": index} if server.seeded else {})},
        )
        first = 0.0
        async for piece in pieces:
            if piece.choices and piece.choices[0].delta.content:
                first = first or time.perf_counter() - began
        return first

    firsts = await asyncio.gather(*(stream(i) for i in range(count)))
    seconds = time.perf_counter() - began
    return Figures(tokens_per_s=count * TOKENS / seconds, first_token_s=statistics.mean(firsts))


def summarize(pairs: list[Pair]) -> dict[str, object]:
    ratios = [ours.tokens_per_s / theirs.tokens_per_s for ours, theirs in pairs]
    later_ms = [1e3 * (ours.first_token_s - theirs.first_token_s) for ours, theirs in pairs]
    return {
        "tokens_per_s": [
            round(statistics.median(side.tokens_per_s for side in sides))
            for sides in zip(*pairs, strict=True)
        ],
        "ratio": round(statistics.median(ratios), 4),
        "ratio_95": [round(x, 4) for x in bootstrap(ratios, statistics.median, draws=2000)],
        "first_token_ms": [
            round(1e3 * statistics.median(side.first_token_s for side in sides), 1)
            for sides in zip(*pairs, strict=True)
        ],
        "later_ms": round(statistics.median(later_ms), 2),
        "later_ms_95": [round(x, 2) for x in bootstrap(later_ms, statistics.median, draws=2000)],
    }


def _connect(url: str) -> AsyncOpenAI:
    return AsyncOpenAI(base_url=f"{url}/v1", api_key="none", timeout=600)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--alternations", type=int, default=20)
    parser.add_argument("--seeded", action="store_true", help="give every request a seed")
    asked = parser.parse_args()
    with start_daemon() as daemon:
        asyncio.run(measure(daemon.url, asked.alternations, seeded=asked.seeded))


if __name__ == "__main__":
    main()
