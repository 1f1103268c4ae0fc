"""What does a decode step take beside the model's own computation: vLLM's and ours?

    python -m scripts.bench.engine.decode_steps [--rows 1 16 64 256] [--rounds 5] [--tokens 8 40]

A model that computes nothing (`free_model`) is served four ways: vLLM's `vllm.LLM` in this
process, `vllm serve`, plain completions of our daemon, and a search of our daemon
(self-consistency, whose paths need no scores). All draw the same requests, with seeds, at T = 0.8,
over 151,936 tokens, so many at once as `--rows` says. The ways take turns.

Two times of a step are printed, medians over rounds: `client`, what whoever asked waits for one
more token of all sequences (the time of long answers less that of short ones, by the tokens between
them), and `engine`, from one step to the next inside the engine's process, with its parts
(`step_times`). Where vLLM computes in a further process, as it does on a CPU, that one's parts are
in `rest`. Each engine computes with one thread on a CPU. The last line is JSON.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import statistics
import tempfile
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import httpx

from flashedge.engine.platform import runs_on_cpu
from scripts.bench.daemon import report
from scripts.bench.engine import step_times
from scripts.bench.engine.free_model import TEMPERATURE, offer_free_model
from scripts.bench.engine.free_pair import KV_SHARE, NAME, POSITIONS, PROMPT, write_free_pair
from scripts.bench.turns import rotate
from scripts.card.served import MODEL

PARTS = ("schedule", *step_times.PARTS, "update", "rest")

Way = Callable[[int, int], Awaitable[None]]
"""Draws answers: how many at once, and of how many tokens each."""


def generate_with_vllm(folder: Path) -> Way:
    """vLLM's own class, in this process."""
    from vllm import LLM, SamplingParams

    limits: dict[str, Any] = {} if runs_on_cpu() else {"gpu_memory_utilization": KV_SHARE}
    llm = LLM(str(folder), max_model_len=POSITIONS, **limits)

    async def draw(rows: int, tokens: int) -> None:
        params = [
            SamplingParams(temperature=TEMPERATURE, seed=i, max_tokens=tokens, ignore_eos=True)
            for i in range(rows)
        ]
        prompts = [{"prompt_token_ids": list(PROMPT)} for _ in range(rows)]
        await asyncio.to_thread(llm.generate, prompts, params, use_tqdm=False)

    return draw


def complete_by(client: httpx.AsyncClient, model: str) -> Way:
    """A server's /v1/completions."""

    async def complete(seed: int, tokens: int) -> None:
        body = {"model": model, "prompt": list(PROMPT), "max_tokens": tokens, "seed": seed}
        body |= {"temperature": TEMPERATURE, "ignore_eos": True}
        reply = await client.post("/v1/completions", json=body)
        reply.raise_for_status()

    async def draw(rows: int, tokens: int) -> None:
        await asyncio.gather(*(complete(seed, tokens) for seed in range(rows)))

    return draw


def search_by(client: httpx.AsyncClient) -> Way:
    """A search of as many paths."""

    async def draw(rows: int, tokens: int) -> None:
        body = {"problem": "Count.", "strategy": "self_consistency", "n": rows}
        body |= {"max_tokens": tokens, "temperature": TEMPERATURE, "early_exit": False}
        reply = await client.post("/v1/solve", json=body)
        reply.raise_for_status()

    return draw


async def time_steps(
    way: Way, rows: int, tokens: Sequence[int], folder: Path
) -> tuple[float, list[dict[str, float]]]:
    """Milliseconds of a step for the client, and the steps of the engine."""
    took = []
    began = time.perf_counter()
    for count in tokens:
        start = time.perf_counter()
        await way(rows, count)
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


async def run(asked: argparse.Namespace, work: Path, steps: Path) -> dict[int, Any]:
    pair = write_free_pair(work)
    async with AsyncExitStack() as stack:
        ways: dict[str, Way] = {}
        if "generate" in asked.ways:
            ways["generate"] = generate_with_vllm(pair.generator)
        if "serve" in asked.ways:
            served = await stack.enter_async_context(pair.serve_unmodified(pair.generator))
            ways["serve"] = complete_by(served, MODEL)
        if {"completions", "search"} & set(asked.ways):
            client = await stack.enter_async_context(pair.serve_ours())
            ways |= {"completions": complete_by(client, NAME), "search": search_by(client)}
        ways = {name: ways[name] for name in asked.ways}
        print(
            f"{'rows':>5}  {'way':12}" + "".join(f"{p:>10}" for p in ("client", "engine", *PARTS))
        )
        table = {}
        for rows in asked.rows:
            table[rows] = await measure(ways, rows, asked.rounds, asked.tokens, steps)
            for name, found in table[rows].items():
                print(format_row(rows, name, found), flush=True)
        return table


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, nargs="+", default=[1, 16, 64, 256])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--tokens", type=int, nargs=2, default=[8, 40], help="of an answer")
    names = ["generate", "serve", "completions", "search"]
    parser.add_argument("--ways", nargs="+", choices=names, default=names)
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="flashedge-steps-") as name, offer_free_model():
        work, steps = Path(name), Path(name) / "steps"
        steps.mkdir()
        os.environ[step_times.FOLDER] = str(steps)
        if runs_on_cpu():
            os.environ |= {"OMP_NUM_THREADS": "1", "VLLM_CPU_KVCACHE_SPACE": "1"}
            os.environ["VLLM_CPU_OMP_THREADS_BIND"] = "nobind"
        table = asyncio.run(run(asked, work, steps))
    report(rows=table, tokens=asked.tokens, rounds=asked.rounds)


if __name__ == "__main__":
    main()
