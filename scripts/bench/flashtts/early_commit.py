"""What does it gain to draft the children of certainly kept paths before their level is decided?

    python -m scripts.bench.flashtts.early_commit [--n 16 64 256] [--share 0.4] [--flat]

Beam search with 4 children, AIME-like, 1.5B + 1.5B on a simulated 4090 for each engine, so that
early scores pay. Each seed is another problem, and each is run with and without `early_commit`,
with early scores in both; the trees must be the same. `bound` is what the same trees would allow:
every step takes one unit of time, scores take none, memory has no end, and nothing else is drafted.

Nothing is certain before three in four paths of a level have ended. From then on children get
ahead, but a level ends with its slowest path, whose children do not. So the first level gains
nothing, and a long level after a short one little. --share: of the card's memory. --flat: every
sequence adds nothing to the fixed time of a step. The last line is JSON.
"""

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from statistics import mean

from flashedge.search.tree import Node, NodeStatus, Tree
from flashedge.types import NodeId
from scripts.bench.daemon import report
from scripts.bench.flashtts.study import build_cell, format_table, run_in_parallel
from scripts.bench.smoke import parse_arguments
from scripts.lab.benchmark.ladder import BEST, Rung
from scripts.lab.benchmark.simulate import Bench
from scripts.lab.benchmark.virtual_run import VirtualRun
from scripts.lab.statistics import interval

PAIR, WORKLOAD, BRANCHING = "1.5B+1.5B", "aime", 4
CHUNK_TOKENS = 16
"""Tokens of a chunk, so that what growing paths have written is known."""
Row = dict[str, float | list[float]]
Figures = Mapping[str, float]


def measure_seed(seeds: int, share: float, flat: bool, task: tuple[int, int]) -> Figures:
    n, seed = task
    bench = build_cell(PAIR, WORKLOAD, n, problems=seeds, share=share)
    device = bench.setup.device
    if flat:
        device = replace(device, sequence_s=0.0)
    setup = replace(
        bench.setup, device=device, verifier_device=device, stream_interval=CHUNK_TOKENS
    )
    bench = replace(bench, setup=setup)
    off, on = (run_search(bench, seed, early_commit=on) for on in (False, True))
    if on.tree != off.tree:
        raise SystemExit(f"n = {n}, seed {seed}: the trees differ")
    alone, drafted = bound_steps(on.tree)
    return {
        "off_s": off.generate_s,
        "on_s": on.generate_s,
        "off_goodput": off.goodput,
        "on_goodput": on.goodput,
        "commits": on.speculation.early_commits,
        "certain_tokens": on.speculation.certain_tokens,
        "tokens": on.tree.committed_tokens,
        "preemptions": on.preemptions,
        "bound_off": alone,
        "bound_on": drafted,
    }


def run_search(bench: Bench, seed: int, *, early_commit: bool) -> VirtualRun:
    switches = replace(
        BEST.optimizations, score_once=True, early_scores=True, early_commit=early_commit
    )
    rung = Rung(name="", about="", optimizations=switches)
    return bench.run(rung, bench.rows[seed % len(bench.rows)], seed)


def bound_steps(tree: Tree) -> tuple[int, int]:
    """Engine steps of all levels, alone and where the children of certain nodes begin at once."""
    levels: dict[int, list[Node]] = {}
    for node in tree.nodes.values():
        levels.setdefault(node.depth, []).append(node)
    ahead: dict[NodeId, int] = {}
    alone = drafted = 0
    for depth in sorted(levels.keys() - {0}):
        level = levels[depth]
        ends = {n.id: max(0, n.num_tokens - ahead.get(n.id, 0)) for n in level}
        last = max(ends.values())
        alone, drafted = alone + max(n.num_tokens for n in level), drafted + last
        for node in level:
            if children := tree.nodes.children(node.id):
                ahead |= dict.fromkeys(children, last - find_certain_step(tree, level, ends, node))
    return alone, drafted


def find_certain_step(
    tree: Tree, level: Sequence[Node], ends: Mapping[NodeId, int], node: Node
) -> int:
    """The step of its level at which a kept node is certain. ends: when each node ends."""

    def rank(other: Node) -> tuple[float, NodeId]:
        return -tree.path_scores(other.id)[-1], other.id

    for step in sorted({end for end in ends.values() if end >= ends[node.id]}):
        known = [other for other in level if ends[other.id] <= step]
        ended = sum(other.status is NodeStatus.COMPLETE for other in known)
        gone = (NodeStatus.COMPLETE, NodeStatus.DUPLICATE)
        better = sum(rank(other) < rank(node) for other in known if other.status not in gone)
        if better + len(level) - len(known) < -(-(len(level) - ended) // BRANCHING):
            return step
    return max(ends.values())


def summarize(rows: Sequence[Figures]) -> Row:
    """Means over the seeds, and 95 % bootstrap intervals of the ratios of each seed."""
    total = {name: sum(row[name] for row in rows) for name in rows[0]}
    gains = [row["on_goodput"] / row["off_goodput"] for row in rows]
    changes = [row["on_s"] / row["off_s"] - 1 for row in rows]
    return {
        "generator_s_off": round(total["off_s"] / len(rows), 2),
        "generator_s_on": round(total["on_s"] / len(rows), 2),
        "generator_change": round(mean(changes), 3),
        "change_interval": [round(end, 3) for end in interval(changes)],
        "bound": round(mean(row["bound_on"] / row["bound_off"] - 1 for row in rows), 3),
        "goodput_gain": round(mean(gains), 3),
        "gain_interval": [round(end, 3) for end in interval(gains)],
        "commits": round(total["commits"] / len(rows), 1),
        "certain_share": round(total["certain_tokens"] / total["tokens"], 3),
        "preemptions": round(total["preemptions"] / len(rows), 1),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--n", type=int, nargs="+", default=[16, 64, 256])
    parser.add_argument("--seeds", type=int, default=16)
    parser.add_argument("--share", type=float, default=0.4)
    parser.add_argument("--flat", action="store_true")
    asked = parse_arguments(parser, n=[8], seeds=1)
    tasks = [(n, seed) for n in asked.n for seed in range(asked.seeds)]
    work = partial(measure_seed, asked.seeds, asked.share, asked.flat)
    name = f"early-commit-{asked.seeds}-{asked.share}-{asked.flat}"
    rows: dict[int, list[Figures]] = {}
    for (n, _), figures in run_in_parallel(name, work, tasks):
        rows.setdefault(n, []).append(figures)
    found = {n: summarize(one) for n, one in rows.items()}
    lines = [(n, *(f"{value}" for value in one.values())) for n, one in found.items()]
    print(format_table(("n", *found[asked.n[0]]), lines, "Early commit on simulated engines"))
    report(simulated=True, **vars(asked), found=found)


if __name__ == "__main__":
    main()
