"""What does it gain to score each step when it ends, while others of its level generate?

    python -m scripts.bench.flashtts.early_scores [--n 4 16 64] [--kv 34MiB 512MiB] [--problems 40]

Beam search on real engines, each problem both ways one after the other, in an order that turns from
problem to problem; both prefix caches are emptied before each. Half of the KV for each engine, in
prefix order, no speculation. Ratios are of the same problem: seconds level by level over seconds
early, their median, their mean's 95 % interval. The last line is JSON; a tree that differs ends it.
"""

import argparse
import asyncio
import os
from collections.abc import Sequence
from statistics import median
from typing import Any

from flashedge.files.problems import FileProblem, read_problems
from flashedge.optimizations import Optimizations
from flashedge.runtime.request.validation import Request
from flashedge.types import Problem
from scripts.bench.daemon import DATA, report
from scripts.bench.flashtts.kv_rig import Rig, rig
from scripts.bench.smoke import parse_arguments
from scripts.lab.benchmark.live import parse_budget
from scripts.lab.statistics import interval

Seconds = tuple[float, float]  # all of a run, waiting for scores


async def measure_cell(here: Rig, n: int, problems: Sequence[FileProblem]) -> dict[str, Any]:
    found: dict[bool, list[Seconds]] = {False: [], True: []}
    for problem in problems:
        text = Problem.from_text(problem.text)
        spec = Request(problem=text, pair="bundled", n=n, seed=problem.index)
        trees = []
        for early in (False, True) if problem.index % 2 else (True, False):
            way = Optimizations(speculation=False, early_scores=early)
            run = await here.search(spec, way)
            found[early].append((run.seconds, run.verify_s))
            trees.append(run.outcome)
        if trees[0] != trees[1]:
            raise SystemExit(f"problem {problem.index}, n = {n}: the trees differ")
    ratios = [late[0] / soon[0] for late, soon in zip(found[False], found[True], strict=True)]
    waits = [soon[1] / late[1] for late, soon in zip(found[False], found[True], strict=True)]
    return {
        "n": n,
        "problems": len(problems),
        "speedup": round(median(ratios), 3),
        "interval": [round(end, 3) for end in interval(ratios)],
        "waiting_share": round(median(waits), 3),
        "seconds": [round(median(s for s, _ in found[way]), 3) for way in (False, True)],
    }


async def measure(asked: argparse.Namespace) -> list[dict[str, Any]]:
    problems, rows = read_problems(DATA / "heldout.jsonl", asked.problems), []
    for kv in asked.kv:
        name, kv_bytes = parse_budget(kv)
        if kv_bytes is None:
            raise SystemExit(f"{name} is no size")
        async with rig(kv_bytes) as here:
            await here.give_halves()
            for n in asked.n:
                rows.append({"kv": name, **await measure_cell(here, n, problems)})
                print(rows[-1], flush=True)
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--n", type=int, nargs="+", default=[4, 16, 64])
    parser.add_argument("--kv", nargs="+", default=["34MiB", "512MiB"], help="of both engines")
    parser.add_argument("--problems", type=int, default=40)
    asked = parse_arguments(parser, n=[4], kv=["64MiB"], problems=2)
    load = os.getloadavg()[0]
    rows = asyncio.run(measure(asked))
    report(load=[load, os.getloadavg()[0]], cells=rows)


if __name__ == "__main__":
    main()
