"""Do deterministic requests give the same bits beside others, and what does that cost?

Starts the pair's generator twice: as configured, and with vLLM's batch-invariant kernels (on a CPU
these are left out). Each time it draws the same requests alone and beside others, without the flag
and with it. The last line is JSON.
"""

import argparse
import asyncio
import json
import multiprocessing
import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import aclosing
from dataclasses import replace
from random import Random
from typing import Any

from flashedge.config import load_config
from flashedge.engine.base import ExtendRequest
from flashedge.engine.platform import runs_on_cpu
from flashedge.engine.self_test_turns import Turns
from flashedge.engine.vllm.pair import VllmPair
from flashedge.models.registry import find_pair
from flashedge.types import Sampling

OTHERS = 31
TOKENS = 200

Drawn = tuple[tuple[int, ...], tuple[float, ...]]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pair", required=True)
    parser.add_argument("--requests", type=int, default=64)
    arguments = parser.parse_args()
    kernels = (False,) if runs_on_cpu() else (False, True)
    context = multiprocessing.get_context("spawn")  # vLLM reads the setting once a process
    cases: list[dict[str, Any]] = []
    for batch_invariant in kernels:
        with ProcessPoolExecutor(1, context) as pool:
            work = pool.submit(run, arguments.pair, arguments.requests, batch_invariant)
            cases += work.result()
    print(json.dumps({"cases": cases}))


def run(pair: str, requests: int, batch_invariant: bool) -> list[dict[str, Any]]:
    return asyncio.run(measure(pair, requests, batch_invariant))


async def measure(pair: str, requests: int, batch_invariant: bool) -> list[dict[str, Any]]:
    config = load_config({"batch_invariant": batch_invariant})
    engines = VllmPair(find_pair(pair, config), config)
    await engines.start()
    try:
        self_test = await engines.self_test(Turns())
        generator, cases = engines.generator, []
        for flag in (False, True) if self_test["replay_shape"] else (False,):
            some = build_requests(generator, requests, deterministic=flag)
            alone = [await draw(generator, request) for request in some]
            before = (await generator.view()).replays
            others = build_requests(generator, OTHERS, deterministic=False, first_seed=10_000)
            start = time.perf_counter()
            beside = await asyncio.gather(*(draw(generator, r) for r in (*some, *others)))
            seconds = time.perf_counter() - start
            counters = {k: n - before[k] for k, n in (await generator.view()).replays.items()}
            tokens = sum(len(ids) for ids, _ in beside)
            cases.append(
                {
                    "batch_invariant": batch_invariant,
                    "deterministic": flag,
                    "shape": self_test["replay_shape"],
                    "requests": requests,
                    "differ": sum(a[0] != b[0] for a, b in zip(alone, beside, strict=False)),
                    "logprobs_differ": sum(a != b for a, b in zip(alone, beside, strict=False)),
                    "tokens_per_s": tokens / seconds,
                    "rollbacks": counters["rollbacks"],
                    "recomputed_tokens": counters["recomputed_tokens"],
                }
            )
        return cases
    finally:
        await engines.stop()


def build_requests(
    generator: Any, count: int, *, deterministic: bool, first_seed: int = 0
) -> Sequence[ExtendRequest]:
    draw = Random(first_seed)
    vocabulary = generator.codec.encode("0123456789+-=. What is the sum?")
    longest = min(1500, generator.max_model_len - TOKENS - 1)
    request = ExtendRequest(
        token_ids=(),
        seed=0,
        sampling=Sampling(temperature=1.0),
        max_tokens=TOKENS,
        to_boundary=False,
        deterministic=deterministic,
    )
    return [
        replace(
            request,
            token_ids=tuple(draw.choices(vocabulary, k=draw.randint(10, longest))),
            seed=first_seed + number,
        )
        for number in range(count)
    ]


async def draw(generator: Any, request: ExtendRequest) -> Drawn:
    ids: list[int] = []
    logprobs: list[float] = []
    async with aclosing(generator.extend(request)) as stream:
        async for chunk in stream:
            ids += chunk.token_ids
            logprobs += chunk.logprobs
    return tuple(ids), tuple(logprobs)


if __name__ == "__main__":
    main()
