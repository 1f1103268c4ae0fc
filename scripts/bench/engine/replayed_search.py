"""How long does a search take, and how long do unmodified vLLM servers for its very requests?

    python -m scripts.bench.engine.replayed_search [--n 16 64] [--seeds 3] [--rounds 3]

The generator computes nothing and draws steps of the lengths that a real model wrote
(`free_model`); the verifier is of one layer, with random weights. A beam search of our daemon
builds a tree. Then two `vllm serve` with vLLM's own defaults are sent the requests of that tree,
level by level: for each node its path's tokens and as many new ones as it has, and when all have
answered, each path to be scored, whole. Nothing is decided between levels, so it is the least that
a stock search loop over HTTP can take. The third way is our own stock loop (`--baseline`), on the
engines of the first.

The ways take turns. A figure is the sum over seeds of the medians over rounds, by that of the
servers. The last line is JSON.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import tempfile
import time
from collections import defaultdict
from collections.abc import Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import httpx

from flashedge.engine.vllm import compat
from scripts.bench.daemon import report
from scripts.bench.engine.free_model import TEMPERATURE, offer_free_model
from scripts.bench.engine.free_pair import PROMPT, write_free_pair
from scripts.bench.turns import rotate
from scripts.card.served import MODEL
from scripts.lab.benchmark.lengths import load_trace

MOST_STEPS = 16
WAYS = ("flashedge", "baseline", "vllm serve")


@dataclass(frozen=True, slots=True)
class Node:
    """A step of a path, as a request of both engines."""

    path: tuple[int, ...]
    """Tokens before it."""
    ids: tuple[int, ...]
    is_scored: bool


def read_levels(tree: Mapping[str, Any]) -> list[list[Node]]:
    """The nodes of a tree by their depth, the root left out."""
    nodes = {node["id"]: node for node in tree["nodes"]}
    paths: dict[int, tuple[int, ...]] = {}
    depths: dict[int, int] = {}
    levels: defaultdict[int, list[Node]] = defaultdict(list)
    for key in sorted(nodes):
        node, parent = nodes[key], nodes[key]["parent"]
        if parent is None:
            paths[key], depths[key] = PROMPT, 0
            continue
        ids = tuple(node["token_ids"])
        paths[key], depths[key] = paths[parent] + ids, depths[parent] + 1
        if ids:
            levels[depths[key]].append(Node(paths[parent], ids, node["score"] is not None))
    return [levels[depth] for depth in sorted(levels)]


class Servers:
    """Two `vllm serve`, of which the second one is a verifier."""

    def __init__(self, generator: httpx.AsyncClient, verifier: httpx.AsyncClient) -> None:
        self._generator, self._verifier = generator, verifier

    async def serve_levels(self, levels: list[list[Node]]) -> None:
        for nodes in levels:
            await asyncio.gather(*(self._draw(seed, node) for seed, node in enumerate(nodes)))
            await asyncio.gather(*(self._score(node) for node in nodes if node.is_scored))

    async def _draw(self, seed: int, node: Node) -> None:
        body = {"model": MODEL, "prompt": list(node.path), "max_tokens": len(node.ids)}
        body |= {"temperature": TEMPERATURE, "seed": seed, "ignore_eos": True, "logprobs": 0}
        reply = await self._generator.post("/v1/completions", json=body)
        reply.raise_for_status()

    async def _score(self, node: Node) -> None:
        body = {"model": MODEL, "input": [*node.path, *node.ids], "task": "token_classify"}
        reply = await self._verifier.post("/pooling", json=body)
        reply.raise_for_status()


async def search(client: httpx.AsyncClient, n: int, seed: int, *, baseline: bool) -> dict[str, Any]:
    body = {"problem": "Count.", "n": n, "seed": seed, "temperature": TEMPERATURE}
    body |= {"strategy": "beam", "max_steps": MOST_STEPS, "early_exit": False, "baseline": baseline}
    reply = await client.post("/v1/solve", json=body)
    reply.raise_for_status()
    found: dict[str, Any] = reply.json()
    return found


async def measure(
    client: httpx.AsyncClient, servers: Servers, n: int, seeds: int, rounds: int
) -> dict[str, Any]:
    trees = [await search(client, n, seed, baseline=False) for seed in range(seeds)]
    levels = [read_levels(found["tree"]) for found in trees]
    took: defaultdict[tuple[str, int], list[float]] = defaultdict(list)
    for turn in range(rounds):
        for seed in range(seeds):
            for way in rotate(WAYS, turn + seed):
                began = time.perf_counter()
                if way == "vllm serve":
                    await servers.serve_levels(levels[seed])
                else:
                    await search(client, n, seed, baseline=way == "baseline")
                took[way, seed].append(time.perf_counter() - began)
    seconds = {way: sum(median(took[way, seed]) for seed in range(seeds)) for way in WAYS}
    longest = sum(max(len(node.ids) for node in nodes) for tree in levels for nodes in tree)
    return {
        "tokens": sum(len(node.ids) for tree in levels for nodes in tree for node in nodes),
        "steps_in_a_row": longest,
        "seconds": {way: round(found, 3) for way, found in seconds.items()},
        "by_vllm_serve": {
            way: round(found / seconds["vllm serve"], 3) for way, found in seconds.items()
        },
    }


async def run(asked: argparse.Namespace, work: Path) -> dict[int, Any]:
    compat.prepare_environment()
    from flashedge.engine.vllm.prm import find_family

    paths = [steps for row in load_trace("math", "observed").rows for steps in row.step_tokens]
    pair = write_free_pair(work, paths)
    extra = find_family("qwen_prm")(pair.verifier, {}).engine_extra
    async with AsyncExitStack() as stack:
        open_ = stack.enter_async_context
        servers = Servers(
            await open_(pair.serve_unmodified(pair.generator)),
            await open_(pair.serve_unmodified(pair.verifier, extra)),
        )
        client = await open_(pair.serve_ours())
        table = {}
        for n in asked.n:
            table[n] = await measure(client, servers, n, asked.seeds, asked.rounds)
            print(n, json.dumps(table[n]), flush=True)
        return table


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--n", type=int, nargs="+", default=[16, 64])
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--rounds", type=int, default=3)
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="flashedge-replay-") as name, offer_free_model():
        table = asyncio.run(run(asked, Path(name)))
    report(n=table, seeds=asked.seeds, rounds=asked.rounds)


if __name__ == "__main__":
    main()
