"""What does a decode step take beside the model's own computation: vLLM's and ours?

    python -m scripts.bench.engine.decode_steps [--rows 1 16 64 256] [--rounds 5] [--tokens 8 40]
        [--ways generate serve completions search] [--pair NAME]

A model that computes nothing (`free_model`) is served several ways: vLLM's `vllm.LLM` in this
process (`generate`), `vllm serve` (`serve`; `first runner` with vLLM's older model runner,
`synchronous` with that and without asynchronous scheduling), plain completions of our daemon, and a
search of our daemon (self-consistency, whose paths need no scores; `confident search` reports the
confidence of each token, too). All draw the same requests,
with seeds, at T = 0.8, over 151,936 tokens, so many at once as `--rows` says. The ways take turns.
Another pair of the registry is measured with its model's time and its top-p and top-k; the paths of
its searches end where they end.

Two times of a step are printed, medians over rounds: `client`, what whoever asked waits for one
more token of all sequences (the time of long answers less that of short ones, by the tokens between
them), and `engine`, from one step to the next inside the engine's process, with its parts
(`step_times`). Where vLLM computes in a further process, as it does on a CPU, that one's parts are
in `rest`. Each engine computes with one thread on a CPU. The last line is JSON.
"""

import argparse
import asyncio
import os
import statistics
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, contextmanager
from itertools import count
from pathlib import Path
from typing import Any

import httpx

from flashedge.engine.platform import runs_on_cpu
from scripts.bench.daemon import report
from scripts.bench.engine import step_times
from scripts.bench.engine.free_model import TEMPERATURE, offer_free_model
from scripts.bench.engine.free_pair import write_free_pair
from scripts.bench.engine.served_pair import (
    KV_BYTES,
    MODEL,
    ServedPair,
    connect,
    find_served_pair,
    serve,
)
from scripts.bench.smoke import parse_arguments
from scripts.bench.turns import rotate

PROMPT = (5,) * 16
PARTS = ("schedule", *step_times.PARTS, "update", "rest")
OLDER = {"VLLM_USE_V2_MODEL_RUNNER": "0"}
SERVERS: Mapping[str, tuple[Mapping[str, Any], Mapping[str, str]]] = {
    "serve": ({}, {}),
    "first runner": ({}, OLDER),
    "synchronous": ({"async_scheduling": False}, OLDER),
}
"""Arguments and variables of a `vllm serve`, by the name of the way."""
OURS = ("completions", "search", "confident search")
WAYS = ("generate", "serve", *OURS, "first runner", "synchronous")
STEPS = "steps"

Way = Callable[[int, int], Awaitable[None]]
"""Draws answers: how many at once, and of how many tokens each."""


def generate_with_vllm(pair: ServedPair) -> Way:
    """vLLM's own class, in this process."""
    from vllm import LLM, SamplingParams

    spec, cuts = pair.pair.generator, pair.pair.sampling
    llm = LLM(
        str(pair.generator),
        max_model_len=spec.max_model_len,
        dtype=spec.dtype,
        kv_cache_memory_bytes=pair.kv_bytes,
    )

    async def draw(rows: int, tokens: int) -> None:
        params = [
            SamplingParams(
                temperature=TEMPERATURE,
                top_p=cuts.top_p,
                top_k=cuts.top_k,
                seed=i,
                max_tokens=tokens,
                ignore_eos=True,
            )
            for i in range(rows)
        ]
        prompts = [{"prompt_token_ids": list(PROMPT)} for _ in range(rows)]
        await asyncio.to_thread(llm.generate, prompts, params, use_tqdm=False)

    return draw


def complete_by(client: httpx.AsyncClient, model: str) -> Way:
    """A server's /v1/completions."""

    names = count()

    async def complete(seed: int, tokens: int) -> None:
        """As a new client, so that nothing is drafted from an earlier answer."""
        name = {"X-FlashEdge-Client": f"request {next(names)}"}
        body = {"model": model, "prompt": list(PROMPT), "max_tokens": tokens, "seed": seed}
        body |= {"temperature": TEMPERATURE, "ignore_eos": True}
        reply = await client.post("/v1/completions", json=body, headers=name)
        reply.raise_for_status()

    async def draw(rows: int, tokens: int) -> None:
        await asyncio.gather(*(complete(seed, tokens) for seed in range(rows)))

    return draw


def search_by(client: httpx.AsyncClient, **fields: Any) -> Way:
    """A search of as many paths. fields: of its request."""

    names = count()

    async def draw(rows: int, tokens: int) -> None:
        name = {"X-FlashEdge-Client": f"search {next(names)}"}
        body = {"problem": "Count.", "strategy": "self_consistency", "n": rows}
        body |= {"max_tokens": tokens, "temperature": TEMPERATURE, "early_exit": False, **fields}
        reply = await client.post("/v1/solve", json=body, headers=name)
        reply.raise_for_status()

    return draw


async def time_steps(
    way: Way, rows: int, tokens: Sequence[int], folder: Path
) -> tuple[float, list[dict[str, float]]]:
    """Milliseconds of a step for the client, and the steps of the engine."""
    took = []
    began = time.perf_counter()
    for most in tokens:
        start = time.perf_counter()
        await way(rows, most)
        took.append(time.perf_counter() - start)
    await asyncio.sleep(0.2)  # the engine writes its last steps
    step_ms = 1e3 * (took[1] - took[0]) / (tokens[1] - tokens[0])
    return step_ms, step_times.read_steps(folder, began)


async def measure(
    ways: Mapping[str, Way], rows: int, rounds: int, tokens: Sequence[int], folder: Path
) -> dict[str, dict[str, float]]:
    client: dict[str, list[float]] = {name: [] for name in ways}
    steps: dict[str, list[dict[str, float]]] = {name: [] for name in ways}
    for turn in range(rounds + 1):
        for name in rotate(list(ways), turn):
            step_ms, found = await time_steps(ways[name], rows, tokens, folder)
            if turn:  # the first round warms up
                client[name].append(step_ms)
                steps[name] += found
    return {
        name: {"client": statistics.median(client[name])} | step_times.summarize(steps[name], rows)
        for name in ways
    }


def format_row(rows: int, name: str, found: Mapping[str, float]) -> str:
    figures = [found.get(part, 0.0) for part in ("client", "interval", *PARTS)]
    return f"{rows:5}  {name:12}" + "".join(f"{figure:10.2f}" for figure in figures)


async def open_ways(
    stack: AsyncExitStack, pair: ServedPair, names: Sequence[str], logs: Path
) -> dict[str, Way]:
    """Start whatever these ways need, all `vllm serve` at once."""
    servers = {name: pair.build_generator(*SERVERS[name]) for name in names if name in SERVERS}
    clients = await stack.enter_async_context(serve(servers, logs))
    ways = {name: complete_by(client, MODEL) for name, client in clients.items()}
    if "generate" in names:
        ways["generate"] = generate_with_vllm(pair)
    if set(OURS) & set(names):
        daemon = stack.enter_context(pair.start_ours())
        client = await stack.enter_async_context(connect(daemon.url))
        ways |= {"completions": complete_by(client, pair.pair.name), "search": search_by(client)}
        whole = {"strategy": "deepconf", "options": {"stops": False}}
        ways["confident search"] = search_by(client, **whole)
    return {name: ways[name] for name in names}


async def measure_rows(
    ways: Mapping[str, Way],
    all_rows: Sequence[int],
    rounds: int,
    tokens: Sequence[int],
    steps: Path,
) -> dict[int, Any]:
    """Measure and print the table. steps: the folder that FLASHEDGE_STEP_TIMES names."""
    print(f"{'rows':>5}  {'way':12}" + "".join(f"{p:>10}" for p in ("client", "engine", *PARTS)))
    table = {}
    for rows in all_rows:
        table[rows] = await measure(ways, rows, rounds, tokens, steps)
        for name, found in table[rows].items():
            print(format_row(rows, name, found), flush=True)
    return table


async def run(asked: argparse.Namespace, work: Path, steps: Path) -> dict[int, Any]:
    pair = find_served_pair(asked.pair, asked.kv_bytes) if asked.pair else write_free_pair(work)
    async with AsyncExitStack() as stack:
        ways = await open_ways(stack, pair, asked.ways, work)
        return await measure_rows(ways, asked.rows, asked.rounds, asked.tokens, steps)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, nargs="+", default=[1, 16, 64, 256])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--tokens", type=int, nargs=2, default=[8, 40], help="of an answer")
    parser.add_argument("--ways", nargs="+", choices=WAYS, default=WAYS[:4])
    parser.add_argument("--pair", help="default: the free model")
    parser.add_argument("--kv-bytes", type=int, default=KV_BYTES, help="KV memory of each engine")
    asked = parse_arguments(parser, rows=[1], rounds=1, tokens=[2, 4], ways=["search"])
    with tempfile.TemporaryDirectory(prefix="flashedge-steps-") as name, time_engines(Path(name)):
        table = asyncio.run(run(asked, Path(name), Path(name) / STEPS))
    report(rows=table, tokens=asked.tokens, rounds=asked.rounds)


@contextmanager
def time_engines(work: Path) -> Iterator[None]:
    """Let the engines that are started meanwhile write their steps into `work`/STEPS."""
    (work / STEPS).mkdir(exist_ok=True)
    os.environ[step_times.FOLDER] = str(work / STEPS)
    if runs_on_cpu():
        os.environ |= {"OMP_NUM_THREADS": "1", "VLLM_CPU_OMP_THREADS_BIND": "nobind"}
    with offer_free_model():
        yield


if __name__ == "__main__":
    main()
