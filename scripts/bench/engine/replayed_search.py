"""How long does a search take, and how long do unmodified vLLM servers for its very requests?

    python -m scripts.bench.engine.replayed_search [--n 16 64] [--runs 6] [--ways ...]
        [--pair NAME --problems FILE] [--trees FOLDER]

A beam search of our daemon builds a tree. Then two `vllm serve` with vLLM's own defaults are sent
the requests of that tree, level by level: for each node its path's tokens and as many new ones as
it has, and when all have answered, each path to be scored, whole. Nothing is decided between
levels, so it is the least that a stock search loop over HTTP can take. Further ways are our own
stock loop (`baseline`), on the engines of the first, and a daemon that drafts nothing
(`no speculation`).

By default the generator computes nothing and draws steps of the lengths that a real model wrote
(`free_model`), and the verifier is of one layer, with random weights. A pair of the registry is
given problems to solve.

Each run has a seed, and so a tree, of its own. The ways take turns. What is reported is the sum of
a way's seconds over all runs, by that of the servers, with its 95 % interval. The last line is
JSON.
"""

import argparse
import asyncio
import gzip
import json
import tempfile
import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import httpx

from flashedge.files.problems import read_labelled
from scripts.bench.daemon import report
from scripts.bench.engine.decode_steps import time_engines
from scripts.bench.engine.free_model import TEMPERATURE
from scripts.bench.engine.free_pair import write_free_pair
from scripts.bench.engine.served_pair import (
    KV_BYTES,
    MODEL,
    ServedPair,
    connect,
    find_served_pair,
    serve,
)
from scripts.bench.turns import compare_seconds, rotate
from scripts.lab.benchmark.lengths import load_trace

SERVERS = "vllm serve"
OURS = ("flashedge", "baseline", "no speculation")
PROBLEM = "Count."
WARM_UP, WARM_UP_N = 999, 4
"""The seed of a search that is not timed, and its largest n."""


@dataclass(frozen=True, slots=True)
class Node:
    """A step of a path, as a request of both engines."""

    path: tuple[int, ...]
    """Tokens before it."""
    ids: tuple[int, ...]
    is_scored: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One way's work on one tree."""

    seconds: float
    generate_s: float = 0.0
    verify_s: float = 0.0
    tokens: int = 0
    in_a_row: int = 0
    """Tokens of the longest step of each level: decode steps that no loop can avoid."""
    drawn: int = 0
    kept: int = 0
    """Tokens that speculation drew, and those of them that the tree kept."""


def read_levels(found: Mapping[str, Any]) -> list[list[Node]]:
    """The nodes of a run's tree by their depth, the root left out."""
    tree, prompt = found["tree"], (5,) * found["usage"]["prompt_tokens"]
    nodes = {node["id"]: node for node in tree["nodes"]}
    paths: dict[int, tuple[int, ...]] = {}
    depths: dict[int, int] = {}
    levels: defaultdict[int, list[Node]] = defaultdict(list)
    for key in sorted(nodes):
        node, parent = nodes[key], nodes[key]["parent"]
        if parent is None:
            paths[key], depths[key] = prompt, 0
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

    async def serve_levels(self, levels: list[list[Node]]) -> tuple[float, float]:
        """Returns the seconds of the generator and of the verifier."""
        generate_s = verify_s = 0.0
        for nodes in levels:
            began = time.perf_counter()
            await asyncio.gather(*(self._draw(seed, node) for seed, node in enumerate(nodes)))
            drawn = time.perf_counter()
            await asyncio.gather(*(self._score(node) for node in nodes if node.is_scored))
            generate_s += drawn - began
            verify_s += time.perf_counter() - drawn
        return generate_s, verify_s

    async def _draw(self, seed: int, node: Node) -> None:
        body = {"model": MODEL, "prompt": list(node.path), "max_tokens": len(node.ids)}
        body |= {"temperature": TEMPERATURE, "seed": seed, "ignore_eos": True, "logprobs": 0}
        reply = await self._generator.post("/v1/completions", json=body)
        reply.raise_for_status()

    async def _score(self, node: Node) -> None:
        body = {"model": MODEL, "input": [*node.path, *node.ids], "task": "token_classify"}
        reply = await self._verifier.post("/pooling", json=body)
        reply.raise_for_status()


async def search(
    client: httpx.AsyncClient, problem: str, n: int, seed: int, *, baseline: bool = False
) -> dict[str, Any]:
    """Run a search of a new client, so that nothing is drafted from an earlier answer."""
    name = {"X-FlashEdge-Client": f"{n} paths, seed {seed}"}
    body = {"problem": problem, "n": n, "seed": seed, "temperature": TEMPERATURE}
    body |= {"strategy": "beam", "early_exit": False, "baseline": baseline}
    reply = await client.post("/v1/solve", json=body, headers=name)
    reply.raise_for_status()
    found: dict[str, Any] = reply.json()
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class Loops:
    """Whatever runs a search or its requests."""

    ours: Mapping[str, httpx.AsyncClient]
    """By the way."""
    servers: Servers | None = None
    """None: only ours run."""
    trees: Path | None = None
    """Where to keep the searches' results."""

    async def run(self, problem: str, n: int, seed: int, turn: int) -> dict[str, Run]:
        """Run every way on the problem; the servers get the tree of the first."""
        runs: dict[str, Run] = {}
        levels: list[list[Node]] = []
        for way in rotate(list(self.ours), turn):
            began = time.perf_counter()
            found = await search(self.ours[way], problem, n, seed, baseline=way == "baseline")
            seconds = time.perf_counter() - began
            levels = read_levels(found)
            runs[way] = read_run(found, levels, seconds)
            if self.trees:
                name = f"{n}-{seed}-{way.replace(' ', '-')}.json.gz"
                (self.trees / name).write_bytes(gzip.compress(json.dumps(found).encode()))
        if self.servers is None:
            return runs
        took = await self.servers.serve_levels(levels)
        served = Run(seconds=sum(took), generate_s=took[0], verify_s=took[1])
        return {**runs, SERVERS: served}


def read_run(found: Mapping[str, Any], levels: list[list[Node]], seconds: float) -> Run:
    drawn, timing = found["usage"]["speculation"], found["timing"]
    return Run(
        seconds=seconds,
        generate_s=timing["generate_s"],
        verify_s=timing["verify_s"],
        tokens=sum(len(node.ids) for nodes in levels for node in nodes),
        in_a_row=sum(max(len(node.ids) for node in nodes) for nodes in levels),
        drawn=drawn["drawn_tokens"],
        kept=drawn["kept_tokens"],
    )


async def measure(
    loops: Loops, problems: Sequence[str], n: int, runs: int
) -> tuple[list[dict[str, Run]], dict[str, Any]]:
    await loops.run(problems[0], min(n, WARM_UP_N), WARM_UP, 0)
    rows = [await loops.run(problems[seed % len(problems)], n, seed, seed) for seed in range(runs)]
    return rows, {way: summarize(rows, way) for way in rows[0]}


def summarize(rows: Sequence[Mapping[str, Run]], way: str) -> dict[str, Any]:
    """Sums over the runs, and ratios. rows: for each run, what was measured, by way."""
    of = [row[way] for row in rows]
    found: dict[str, Any] = {
        "seconds": round(sum(run.seconds for run in of), 3),
        "median_s": round(median(run.seconds for run in of), 3),
        "generate_s": round(sum(run.generate_s for run in of), 3),
        "verify_s": round(sum(run.verify_s for run in of), 3),
    }
    if SERVERS in rows[0]:
        found["by_servers"] = [round(x, 3) for x in compare_seconds(rows, way, SERVERS)]
    if way != SERVERS:
        found |= {
            "tokens": sum(run.tokens for run in of),
            "in_a_row": sum(run.in_a_row for run in of),
            "ms_a_step": round(
                1e3 * sum(run.generate_s for run in of) / sum(run.in_a_row for run in of), 3
            ),
            "drawn": sum(run.drawn for run in of),
            "kept": sum(run.kept for run in of),
        }
    return found


async def open_loops(
    stack: AsyncExitStack, pair: ServedPair, ways: Sequence[str], logs: Path, trees: Path | None
) -> Loops:
    """Start the servers, both at once, and our daemons."""
    wanted = {"generator": pair.build_generator(), "verifier": pair.build_verifier()}
    clients = await stack.enter_async_context(serve(wanted, logs))
    ours: dict[str, httpx.AsyncClient] = {}
    for way in ways:
        if way == "baseline" and "flashedge" in ours:
            ours[way] = ours["flashedge"]
            continue
        settings = {"features": "speculation=off"} if way == "no speculation" else {}
        daemon = stack.enter_context(pair.start_ours(**settings))
        ours[way] = await stack.enter_async_context(connect(daemon.url))
    servers = Servers(clients["generator"], clients["verifier"])
    return Loops(ours=ours, servers=servers, trees=trees)


async def run(asked: argparse.Namespace, work: Path) -> dict[int, Any]:
    if asked.pair:
        pair = find_served_pair(asked.pair, asked.kv_bytes)
        problems = [problem.text for problem in read_labelled(asked.problems, asked.limit)]
    else:
        trace = load_trace("math", "observed").rows
        pair = write_free_pair(work, [steps for row in trace for steps in row.step_tokens])
        problems = [PROBLEM]
    async with AsyncExitStack() as stack:
        loops = await open_loops(stack, pair, asked.ways, work, asked.trees)
        table = {}
        for n in asked.n:
            _, table[n] = await measure(loops, problems, n, asked.runs)
            for way, found in table[n].items():
                print(n, way, json.dumps(found), flush=True)
        return table


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--n", type=int, nargs="+", default=[16, 64])
    parser.add_argument("--runs", type=int, default=6)
    parser.add_argument("--ways", nargs="+", choices=OURS, default=OURS[:2])
    parser.add_argument("--pair", help="default: the free model")
    parser.add_argument("--problems", type=Path, help="JSON lines of problem and answer")
    parser.add_argument("--limit", type=int, default=4, help="problems")
    parser.add_argument("--kv-bytes", type=int, default=KV_BYTES, help="KV memory of each engine")
    parser.add_argument("--trees", type=Path, help="a folder for the searches' results")
    asked = parser.parse_args()
    if asked.pair and not asked.problems:
        parser.error("--pair needs --problems")
    with tempfile.TemporaryDirectory(prefix="flashedge-replay-") as name, time_engines(Path(name)):
        table = asyncio.run(run(asked, Path(name)))
    report(n=table, runs=asked.runs)


if __name__ == "__main__":
    main()
