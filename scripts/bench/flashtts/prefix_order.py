"""What is the order of a level's paths worth to a KV cache that is too small for them?

    python -m scripts.bench.flashtts.prefix_order [--n 16 64]

Beam searches run on the simulated pair, with step lengths of real samples. Their trees are then run
level by level through an LRU cache, one path at a time, in five orders. `tight` is the size of the
cache as a share of the widest level's distinct blocks. The script prints the blocks computed over
the whole search (at least each block once) and the paper's eviction cost within the levels
(arXiv 2509.00195 §4.2). `estimate` is what the KV split expects.

Then the simulator itself runs the searches, with batching and with both engines under that tight KV
(at least one path of full length). The script prints the virtual seconds that the engines are busy
and the share of tokens reused. The last line is JSON.
"""

import argparse
import asyncio
from random import Random
from typing import Any

from flashedge.answers.workers.mathematics import MathGrader
from flashedge.runtime.drive.driver import Driver
from flashedge.runtime.drive.engines import Engines, Ordering
from flashedge.runtime.request.strategies import build_search
from flashedge.runtime.request.validation import Request
from flashedge.scheduling.prefix_order import (
    Paths,
    order_by_arrival,
    order_by_prefix,
    order_by_sweep,
)
from flashedge.search.tree import Tree
from flashedge.types import TokenIds
from scripts.bench.daemon import DATA, report
from scripts.bench.flashtts.orders import random_order, scattered_order
from scripts.bench.flashtts.radix_cost import count_evictions, measure_cache_cost
from scripts.bench.flashtts.shapes import QWEN25_1_5B
from scripts.bench.smoke import parse_arguments
from scripts.lab.sim.blocks import chain
from scripts.lab.sim.clock import run_virtual
from scripts.lab.sim.engine_loop import SimConfig
from scripts.lab.sim.model import SimModel, StepTrace
from scripts.lab.sim.pair import SimulatedGenerator, SimulatedVerifier

TRACE = StepTrace.read(DATA / "step_lengths_small.jsonl")
BLOCK = 16
TIGHT = (0.25, 0.5, 0.75, 1.0)
PROBLEMS = 6
CONTEXT = 1024
AMPLE_TOKENS = 1 << 20


def list_orders() -> dict[str, Ordering]:
    random = Random(0)
    return {
        "worst": scattered_order,
        "random": lambda paths: random_order(paths, random),
        "arrival": order_by_arrival,
        "prefix": order_by_prefix,
        "sweep": order_by_sweep,
    }


# ---------------------------------------------------------------- the trees


async def run_search(n: int, row: int, kv_tokens: int, order: Ordering) -> dict[str, Any]:
    """Run a beam search on the simulated pair. Each engine has room for `kv_tokens`."""
    config = SimConfig(
        shape=QWEN25_1_5B,
        kv_bytes=kv_tokens * QWEN25_1_5B.kv_bytes_per_token,
        block_tokens=BLOCK,
        max_model_len=CONTEXT,
        max_num_seqs=max(n, 256),
    )
    gate, loop = asyncio.Lock(), asyncio.get_running_loop()
    generator = SimulatedGenerator(config, SimModel(TRACE), gate=gate)
    verifier = SimulatedVerifier(config, gate=gate)
    engines = Engines(generator=generator, verifier=verifier, grader=MathGrader(), order=order)
    spec = Request(problem=TRACE.problem(row), pair="bundled", n=n, seed=row)
    prompt = generator.codec.encode_chat(spec.problem.messages)
    driver = Driver(build_search(spec), spec, prompt, engines, lambda event: None)
    began = loop.time()
    outcome = await driver.run()
    await engines.grader.close()  # type: ignore[attr-defined]
    return {
        "tree": outcome.tree,
        "prompt": prompt,
        "seconds": loop.time() - began,
        "busy_s": generator.busy_s + verifier.busy_s,
        "tokens": driver.scoring.tokens,
        "cached": driver.scoring.cached_tokens,
    }


Level = tuple[Paths, Paths]  # node ids, blocks


def list_levels(tree: Tree, prompt: TokenIds) -> list[Level]:
    """List the paths that the verifier scores, level by level, in the order of the search."""
    found: dict[int, tuple[list[Any], list[Any]]] = {}
    for node in tree.nodes.values():
        if node.segment is not None:
            names, paths = found.setdefault(node.depth, ([], []))
            names.append([at.id for at in tree.path(node.id)])
            paths.append(hash_blocks((*prompt, *tree.path_token_ids(node.id))))
    return [found[depth] for depth in sorted(found)]


def hash_blocks(tokens: TokenIds) -> list[int]:
    keys = [0]
    for at in range(0, len(tokens) - BLOCK + 1, BLOCK):
        keys.append(chain(keys[-1], tokens[at : at + BLOCK]))
    return keys[1:]


# ---------------------------------------------------------------- the cost


def model_costs(trees: list[list[Level]], tight: float) -> dict[str, dict[str, float]]:
    found: dict[str, dict[str, float]] = {}
    for name, order in list_orders().items():
        computed = evicted = least = 0
        for levels in trees:
            ordered = [(blocks, order(names)) for names, blocks in levels]
            capacity = compute_capacity(levels, tight)
            computed += measure_cache_cost(ordered, capacity).computed
            evicted += sum(count_evictions(paths, at, capacity) for paths, at in ordered)
            least += len({key for paths, _ in ordered for path in paths for key in path})
        found[name] = {"computed": computed, "evicted": evicted, "least": least}
    again = sum(estimate_recomputed(levels, compute_capacity(levels, tight)) for levels in trees)
    found["estimate"] = {"computed": least + again}
    return found


def estimate_recomputed(levels: list[Level], capacity: int) -> int:
    """Estimate the blocks computed again as the KV split does (`scheduling.kv.stages`): the live
    tree, once in each level that does not fit."""
    known: set[int] = set()
    again = 0
    for _, blocks in levels:
        level = {key for path in blocks for key in path}
        again += len(level & known) if len(level) > capacity else 0
        known |= level
    return again


def compute_capacity(levels: list[Level], tight: float) -> int:
    """Blocks of the cache. They hold at least the longest path."""
    widest = max(len({key for path in blocks for key in path}) for _, blocks in levels)
    longest = max(len(path) for _, blocks in levels for path in blocks)
    return max(round(tight * widest), longest)


def simulate(n: int, trees: list[list[Level]], tight: float) -> dict[str, dict[str, float]]:
    found: dict[str, dict[str, float]] = {}
    for name, order in list_orders().items():
        runs = [
            run_virtual(run_search(n, row, max(compute_capacity(t, tight) * BLOCK, CONTEXT), order))
            for row, t in enumerate(trees)
        ]
        share = sum(r["cached"] for r in runs) / sum(r["tokens"] for r in runs)
        busy_s = sum(r["busy_s"] for r in runs)
        found[name] = {"busy_s": round(busy_s, 3), "verifier_reuse": round(share, 3)}
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--n", type=int, nargs="+", default=[16, 64])
    widths = parse_arguments(parser, n=[8]).n
    model: dict[str, Any] = {}
    simulator: dict[str, Any] = {}
    for n in widths:
        made = [
            run_virtual(run_search(n, r, AMPLE_TOKENS, order_by_arrival)) for r in range(PROBLEMS)
        ]
        trees = [list_levels(run["tree"], run["prompt"]) for run in made]
        for tight in TIGHT:
            key = f"n={n} tight={tight}"
            model[key], simulator[key] = model_costs(trees, tight), simulate(n, trees, tight)
            for name, cost in model[key].items():
                print(f"{key:18} {name:8} {cost} {simulator[key].get(name, '')}", flush=True)
    report(model=model, simulator=simulator)


if __name__ == "__main__":
    main()
