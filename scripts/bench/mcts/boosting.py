"""Does boosting ever hurt? MCTS under load on simulated cards, with steps of recorded trees.

    python -m scripts.bench.mcts.boosting runs/mcts/heldout.jsonl [--loads 8] [--places ...]

Searches arrive at random times. Every variant gets the same problems at the same times (paired by
load), by the product's driver, queue, admission and boosting in virtual time. A rate is given as a
share of the searches a second that PE+NE finishes when all arrive at once. Intervals: 95 %, by
bootstrap over loads. Interrupted, it resumes. The last line is JSON.

Hypothesis (arXiv 2604.00510 §5): p99 up to 2.83 times below serial and 1.46 below PE. Of boosting
over PE+NE: at least 1.1 in one configuration, and never below 0.98, where the paper had 0.8.
"""

import argparse
import json
from collections.abc import Mapping, Sequence
from functools import cache, partial
from pathlib import Path
from random import Random
from statistics import fmean
from typing import Any

from flashedge.config import load_config
from scripts.bench.daemon import ROOT, report
from scripts.bench.flashtts.study import format_table, run_in_parallel
from scripts.bench.mcts.figures import Pool, compare, measure
from scripts.bench.mcts.load import Load, run_load
from scripts.bench.mcts.load_record import LoadRecord, draw_times
from scripts.bench.mcts.places import PLACES, build_place
from scripts.bench.mcts.recorded_tree import RecordedProblem, load_problems, load_records
from scripts.bench.mcts.variants import VARIANTS
from scripts.bench.pearson import pearson

OUTPUT = ROOT / "runs" / "mcts"
SHARES = (0.1, 0.3, 0.6, 0.9)
SATURATED = 0.0
"""The rate of a load whose searches all arrive at once."""
LOAD_SIZE = 64
Task = tuple[str, str, float, int]  # place, variant, searches a second, load
CONFIG = {"queue_limit": 100_000}
HEAD = (
    "where, share of capacity",
    "variant",
    "p50 s",
    "p99 s",
    "searches/s",
    "tokens",
    "right",
    "card busy",
    "gate open",
    "mean over PE+NE",
    "p99 over PE+NE",
)


@cache
def read_problems(path: str) -> tuple[RecordedProblem, ...]:
    return tuple(load_problems(Path(path)))


def choose_problems(path: str, load: int) -> list[RecordedProblem]:
    """The problems of a load: each load takes the next ones of a fixed shuffle."""
    problems = list(read_problems(path))
    Random(0).shuffle(problems)
    first = load * LOAD_SIZE
    return [problems[i % len(problems)] for i in range(first, first + LOAD_SIZE)]


def run_task(path: str, seed: int, task: Task) -> dict[str, Any]:
    place, name, rate, load = task
    variant = VARIANTS[name]
    record = run_load(
        Load(
            place=build_place(place),
            config=load_config(CONFIG, environ={}),
            search=variant.build_spec(),
            problems=choose_problems(path, load),
            times_s=draw_times(LOAD_SIZE, rate, seed + load),
            boost=variant.boost,
        )
    )
    return record.to_json()


def run_tasks(path: str, seed: int, tasks: Sequence[Task]) -> dict[Task, LoadRecord]:
    rows = run_in_parallel(
        f"boosting-{Path(path).stem}-{seed}", partial(run_task, path, seed), tasks
    )
    return {task: LoadRecord.from_json(row) for task, row in rows}


def find_capacity(found: Mapping[Task, LoadRecord], place: str, loads: int) -> float:
    """Searches a second that PE+NE finishes when all arrive at once."""
    return fmean(
        LOAD_SIZE / found[place, "PE+NE", SATURATED, load].makespan_s for load in range(loads)
    )


def describe_trees(path: Path) -> dict[str, float]:
    """What the recorded trees say about early scores."""
    problem = RecordedProblem(0)
    rows = [
        rollout
        for record in load_records(path)
        if record["way"] == "mcts"
        for rollout in problem.list_rollouts(record)
    ]
    first, last = [one for one, _, _ in rows], [score for _, score, _ in rows]
    return {
        "rollouts": len(rows),
        "right": fmean(is_right for _, _, is_right in rows),
        "first_step_correlation": pearson(first, last),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("trees", type=Path)
    parser.add_argument("--loads", type=int, default=8)
    parser.add_argument("--places", nargs="+", choices=PLACES, default=list(PLACES))
    parser.add_argument("--variants", nargs="+", choices=VARIANTS, default=list(VARIANTS))
    parser.add_argument("--seed", type=int, default=1000, help="of the arrivals")
    asked = parser.parse_args()
    path, loads = str(asked.trees.resolve()), range(asked.loads)
    full = [(p, v, SATURATED, load) for p in asked.places for v in asked.variants for load in loads]
    found = run_tasks(path, asked.seed, full)
    capacity = {place: find_capacity(found, place, asked.loads) for place in asked.places}
    tasks = [
        (place, variant, round(share * capacity[place], 6), load)
        for place in asked.places
        for share in SHARES
        for variant in asked.variants
        for load in loads
    ]
    found |= run_tasks(path, asked.seed, tasks)
    figures: dict[str, Any] = {}
    lines = []
    for place in asked.places:
        for share in (SATURATED, *SHARES):
            rate = round(share * capacity[place], 6)
            pools = {
                variant: Pool([found[place, variant, rate, load] for load in loads])
                for variant in asked.variants
            }
            rows = {
                variant: {**measure(pool), **compare(pool, pools)}
                for variant, pool in pools.items()
            }
            cell = f"{place}, {share:.0%}" if share else f"{place}, all at once"
            figures[cell] = {"searches_per_s": rate, "variants": rows}
            lines += [format_row(cell, variant, row) for variant, row in rows.items()]
    print(format_table(HEAD, lines) + "\n")
    trees = describe_trees(asked.trees)
    OUTPUT.mkdir(parents=True, exist_ok=True)
    kept = {"capacity": capacity, "trees": trees, "cells": figures}
    (OUTPUT / "boosting.json").write_text(json.dumps(kept, indent=1) + "\n", encoding="utf-8")
    report(loads=asked.loads, load_size=LOAD_SIZE, **kept)


def format_row(cell: str, variant: str, row: Mapping[str, Any]) -> tuple[str, ...]:
    def ratio(name: str) -> str:
        value, low, high = row[name]
        return f"{value:.2f} ({low:.2f}-{high:.2f})"

    return (
        cell,
        variant,
        f"{row['p50_s']:.1f}",
        f"{row['p99_s']:.1f}",
        f"{row['searches_per_s']:.3f}",
        f"{row['tokens']:.0f}",
        f"{row['right']:.3f}",
        f"{row['busy_share']:.2f}",
        f"{row['boosted_share']:.2f}",
        ratio("mean_gain"),
        ratio("p99_gain"),
    )


if __name__ == "__main__":
    main()
