"""What are order and split worth where memory is scarce? (simulated)

    python -m scripts.bench.flashtts.scarce_memory [--n 64] [--mib 170 340] [--problems 20]

Real engines of the bundled pair hold 1,024 tokens, so memory is hardly ever scarce there. This
script simulates beam searches of 1.5B + 1.5B whose paths are four times as long as those of
AIME-like problems (twice as many steps, each twice as long, at most 2,400 tokens a path), with KV
budgets of which half does not hold a level of the search.

The baseline scores suffixes, gives each engine half of the memory and submits paths in the order in
which they arrive. The arms change the order (random, prefix order, sweep), and the last also moves
the split, as the product does. Nothing is drafted. Each problem has its own seed, and all arms
build the same tree. A speed-up is the baseline's seconds over the arm's, a gain the arm's goodput
over the baseline's, each as the median over problems with its 95 % bootstrap interval.
`need` is the KV that the generator's requests hold at once where memory is ample. Problems run in a
shuffled order; those that --minutes does not leave time for are left out. The last line is JSON.
"""

import argparse
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from dataclasses import dataclass, replace
from random import Random
from statistics import mean, median
from typing import Any

from flashedge.optimizations import Optimizations
from flashedge.runtime.drive.engines import Ordering
from flashedge.scheduling.prefix_order import (
    Order,
    Paths,
    order_by_arrival,
    order_by_prefix,
    order_by_sweep,
)
from scripts.bench.daemon import report
from scripts.bench.flashtts.ladder_real import digest_tree
from scripts.bench.flashtts.orders import random_order
from scripts.bench.flashtts.study import WORKERS, build_cell, format_table
from scripts.bench.smoke import parse_arguments
from scripts.lab.benchmark.ladder import Rung
from scripts.lab.benchmark.simulate import Bench
from scripts.lab.benchmark.virtual_run import simulate_run
from scripts.lab.sim.model import StepTrace, TraceRow
from scripts.lab.statistics import bootstrap

Task = tuple[int, int, str, int]
"""n, MiB of KV for both engines, arm, row."""
PAIR = "1.5B+1.5B"
STRETCH = 2
"""Times as many steps, and times as many tokens in each."""
STEP_S, SEQUENCE_S = 0.003, 80e-6
"""Overheads of the simulated 4090: what public figures of vLLM allow."""
PATH_TOKENS, CONTEXT = 2400, 3104
"""Most tokens of a path, and of prompt and path."""
AMPLE_MIB = 16 << 10
BASELINE = "arrival"


@dataclass(frozen=True, slots=True, kw_only=True)
class Arm:
    """An order of the paths, and how the memory is divided."""

    order: str
    optimizations: Optimizations


HALVES = Optimizations.only("suffix_scoring")
ARMS = {
    BASELINE: Arm(order="arrival", optimizations=HALVES),
    "random": Arm(order="random", optimizations=HALVES),
    "prefix": Arm(order="prefix", optimizations=HALVES),
    "sweep": Arm(order="sweep", optimizations=HALVES),
    "sweep+split": Arm(order="sweep", optimizations=replace(HALVES, kv_split=True, offload=True)),
}


def get_order(name: str, seed: int) -> Ordering:
    random = Random(seed)

    def shuffle(paths: Paths) -> Order:
        return random_order(paths, random)

    orders: Mapping[str, Ordering] = {
        "arrival": order_by_arrival,
        "prefix": order_by_prefix,
        "sweep": order_by_sweep,
        "random": shuffle,
    }
    return orders[name]


def lengthen(trace: StepTrace) -> StepTrace:
    return StepTrace(
        tuple(
            TraceRow(
                prompt_tokens=row.prompt_tokens,
                step_tokens=tuple(
                    tuple(STRETCH * tokens for tokens in sample) * STRETCH
                    for sample in row.step_tokens
                ),
            )
            for row in trace.rows
        )
    )


def build_long_bench(n: int, kv_bytes: int, problems: int) -> Bench:
    """Build a cell of the study with long paths and this memory for both engines."""
    found = build_cell(PAIR, "aime", n, problems=problems)
    device = replace(found.setup.device, overhead_s=STEP_S, sequence_s=SEQUENCE_S)
    limits = (CONTEXT, CONTEXT)
    return replace(
        found,
        trace=lengthen(found.trace),
        setup=replace(found.setup, device=device, kv_bytes=kv_bytes, limits=limits),
        search=replace(found.search, max_path_tokens=PATH_TOKENS),
    )


def run_problem(problems: int, task: Task) -> dict[str, Any]:
    n, mib, name, row = task
    bench, arm = build_long_bench(n, mib << 20, problems), ARMS[name]
    rung = Rung(name=name, about="", optimizations=arm.optimizations)
    run = simulate_run(
        rung, bench.setup, bench.trace, bench.spec(row), order=get_order(arm.order, row)
    )
    return {
        "seconds": run.seconds,
        "generate_s": run.generate_s,
        "verify_s": run.verify_s,
        "goodput": run.goodput,
        "preemptions": run.preemptions,
        "reuse": run.verifier_cached_tokens / run.verifier_tokens,
        "split_moves": run.split_moves,
        "offloads": run.offloads,
        "peak_mib": run.generator_peak_bytes / (1 << 20),
        "path_tokens": mean(
            n.path_tokens for n in run.tree.nodes.values() if n.status == "complete"
        ),
        "tree": digest_tree(run.tree),
    }


Runs = Sequence[Mapping[str, Any]]


def divide(ours: Runs, theirs: Runs, name: str) -> list[float]:
    """(problems,): a figure of each problem's run over that of the other run."""
    return [a[name] / b[name] for a, b in zip(ours, theirs, strict=True)]


def summarize(arm: Runs, base: Runs) -> dict[str, Any]:
    """Compare an arm with the baseline, problem by problem."""
    figures: dict[str, Any] = {}
    for name, ratios in (
        ("speedup", divide(base, arm, "seconds")),
        ("verifier_speedup", divide(base, arm, "verify_s")),
        ("goodput_gain", divide(arm, base, "goodput")),
    ):
        figures[name] = [round(v, 3) for v in (median(ratios), *bootstrap(ratios, median))]
    for name in ("seconds", "preemptions", "reuse", "split_moves", "offloads"):
        figures[name] = round(mean(run[name] for run in arm), 3)
    figures["same_trees"] = sum(a["tree"] == b["tree"] for a, b in zip(arm, base, strict=True))
    return figures


def run_until(
    end: float, tasks: Sequence[Task], problems: int
) -> dict[tuple[int, str, int], dict[str, Any]]:
    """Run the tasks in their order until this time. Returns (MiB, arm, row) -> figures."""
    waiting, running = list(reversed(tasks)), dict[Future[dict[str, Any]], Task]()
    found = {}
    with ProcessPoolExecutor(WORKERS) as pool:
        while running or (waiting and time.monotonic() < end):
            while waiting and len(running) < WORKERS and time.monotonic() < end:
                task = waiting.pop()
                running[pool.submit(run_problem, problems, task)] = task
            for done in wait(running, return_when=FIRST_COMPLETED).done:
                found[running.pop(done)[1:]] = done.result()
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--n", type=int, default=64)
    parser.add_argument("--mib", type=int, nargs="+", default=[170, 340])
    parser.add_argument("--problems", type=int, default=20)
    parser.add_argument("--minutes", type=float, default=60.0)
    args = parse_arguments(parser, n=4, mib=[170], problems=1)
    rows = build_long_bench(args.n, AMPLE_MIB << 20, args.problems).rows
    rows = tuple(Random(0).sample(rows, len(rows)))
    cases = [(AMPLE_MIB, BASELINE), *((mib, name) for mib in args.mib for name in ARMS)]
    tasks = [(args.n, *case, row) for row in rows for case in cases]
    results = run_until(time.monotonic() + 60 * args.minutes, tasks, args.problems)
    rows = tuple(row for row in rows if all((*case, row) in results for case in cases))
    if not rows:
        raise SystemExit("no problem was finished in this time")
    found = {case: [results[*case, row] for row in rows] for case in cases}
    need = median(run["peak_mib"] for run in found[AMPLE_MIB, BASELINE])
    cells = {
        mib: {name: summarize(found[mib, name], found[mib, BASELINE]) for name in ARMS}
        for mib in args.mib
    }
    slowdown = {
        mib: round(median(divide(found[mib, BASELINE], found[AMPLE_MIB, BASELINE], "seconds")), 3)
        for mib in args.mib
    }
    lines = [
        (
            mib,
            name,
            *("{:.2f} ({:.2f}–{:.2f})".format(*cell[gain]) for gain in ("speedup", "goodput_gain")),
            f"{cell['reuse']:.0%}",
            f"{cell['preemptions']:.0f}",
            f"{cell['split_moves']:.0f}",
        )
        for mib, arms in cells.items()
        for name, cell in arms.items()
    ]
    head = ("KV, MiB", "arm", "speed-up", "goodput gain", "reuse", "preemptions", "split moves")
    about = f"simulated 4090, {PAIR}, n = {args.n}, {len(rows)} problems; need {need:.0f} MiB"
    print(format_table(head, lines, about))
    report(
        simulated=True,
        n=args.n,
        problems=len(rows),
        need_mib=round(need),
        path_tokens=round(mean(run["path_tokens"] for run in found[AMPLE_MIB, BASELINE])),
        slowdown=slowdown,
        cells=cells,
    )


if __name__ == "__main__":
    main()
