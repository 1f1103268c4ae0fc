"""Chooses how runs are boosted, on calibration problems and loads that the study does not use.

    python -m scripts.bench.mcts.choose_gate runs/mcts/calibration.jsonl

Each parameter is varied by itself. Gains are those over PE+NE+cut on the same loads: how many times
less the mean latency and the p99 are. A candidate is chosen that is worse nowhere (no gain below 1
by more than the tolerance) and gains most in the geometric mean. The last line is JSON.
"""

import argparse
from collections.abc import Mapping
from dataclasses import replace
from functools import cache, partial
from math import exp, log
from pathlib import Path
from random import Random
from statistics import fmean
from typing import Any

from flashedge.config import load_config
from flashedge.scheduling.rollouts.allocation import Allocator
from flashedge.scheduling.rollouts.limiter import RolloutLimiter
from scripts.bench.daemon import report
from scripts.bench.flashtts.study import format_table, run_in_parallel
from scripts.bench.mcts.equal_parallelism import BASE, LOAD_SIZE, SATURATED
from scripts.bench.mcts.figures import Pool, find_quantile, list_latencies, measure
from scripts.bench.mcts.load import Boost, Load, run_load
from scripts.bench.mcts.load_record import LoadRecord, draw_times
from scripts.bench.mcts.places import CORE, build_place
from scripts.bench.mcts.recorded_tree import RecordedProblem, load_problems
from scripts.bench.mcts.variants import BOOST, VARIANTS

PLACES = ("1.5B on one card", "7B on one card", CORE)
SHARES, LOADS, SEED, TOLERANCE = (0.3, 0.9, SATURATED), 2, 50, 0.01
CANDIDATES: Mapping[str, Boost] = {
    "as chosen": BOOST,
    **{
        f"gain {value}": replace(BOOST, limiter=RolloutLimiter(least_gain=value))
        for value in (1.1, 1.2, 1.5)
    },
    **{
        f"beta {value}": replace(BOOST, allocator=Allocator(beta=value))
        for value in (0.0, 1.0, 4.0)
    },
    **{f"most {value}": replace(BOOST, most=value) for value in (4, 16)},
    "observed 2": replace(BOOST, allocator=Allocator(least_observed=2)),
}
Task = tuple[str, str, float, int]  # place, candidate, searches a second, load


@cache
def _read_problems(path: str) -> tuple[RecordedProblem, ...]:
    return tuple(load_problems(Path(path)))


def run_task(path: str, task: Task) -> dict[str, Any]:
    place, name, rate, load = task
    problems = list(_read_problems(path))
    Random(SEED + load).shuffle(problems)
    variant = VARIANTS[BASE if name == BASE else "boost"]
    return run_load(
        Load(
            place=build_place(place),
            config=load_config({"queue_limit": 100_000}, environ={}),
            search=variant.build_spec(),
            problems=problems[:LOAD_SIZE],
            times_s=draw_times(LOAD_SIZE, rate, SEED + load),
            boost=None if name == BASE else CANDIDATES[name],
        )
    ).to_json()


def run_tasks(path: str, tasks: list[Task]) -> dict[Task, LoadRecord]:
    rows = run_in_parallel("choose-gate", partial(run_task, path), tasks)
    return {task: LoadRecord.from_json(row) for task, row in rows}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("trees", type=Path)
    path = str(parser.parse_args().trees.resolve())
    loads = range(LOADS)
    found = run_tasks(path, [(place, BASE, SATURATED, load) for place in PLACES for load in loads])
    capacity = {
        place: fmean(LOAD_SIZE / found[place, BASE, SATURATED, load].makespan_s for load in loads)
        for place in PLACES
    }
    cells = [(place, round(share * capacity[place], 6)) for place in PLACES for share in SHARES]
    names = (BASE, *CANDIDATES)
    found |= run_tasks(
        path,
        [(place, name, rate, load) for place, rate in cells for name in names for load in loads],
    )
    rows: dict[str, dict[str, Any]] = {}
    for name in CANDIDATES:
        gains: dict[str, list[float]] = {"mean": [], "p99": []}
        pools = []
        for place, rate in cells:
            ours, base = ([found[place, one, rate, load] for load in loads] for one in (name, BASE))
            mine, theirs = list_latencies(ours), list_latencies(base)
            gains["mean"].append(fmean(theirs) / fmean(mine))
            gains["p99"].append(find_quantile(theirs, 0.99) / find_quantile(mine, 0.99))
            pools.append(measure(Pool(ours)))
        everything = gains["mean"] + gains["p99"]
        rows[name] = {
            **gains,
            "gain": exp(fmean(map(log, everything))),
            "worst": min(everything),
            "tokens": fmean(pool["tokens"] for pool in pools),
            "right": fmean(pool["right"] for pool in pools),
        }
    safe = [name for name, row in rows.items() if row["worst"] >= 1 - TOLERANCE]
    best = max(safe or rows, key=lambda name: float(rows[name]["gain"]))
    head = (
        "candidate",
        *(f"{place}, {rate:.2f}/s" for place, rate in cells),
        "gain",
        "worst",
        "tokens",
    )
    lines = [
        (
            name,
            *(f"{a:.2f}, {b:.2f}" for a, b in zip(row["mean"], row["p99"], strict=True)),
            f"{row['gain']:.3f}",
            f"{row['worst']:.3f}",
            f"{row['tokens']:.0f}",
        )
        for name, row in rows.items()
    ]
    print(format_table(head, lines, "gains of the mean and of p99 over PE+NE+cut") + "\n")
    report(best=best, capacity=capacity, candidates=rows)


if __name__ == "__main__":
    main()
