"""Boosting against exits alone on real engines, at the same time: two daemons, a core for each.

    python -m scripts.bench.mcts.together [--loads 5] [--size 25] [--shares 0.9 0 0.6 0.3]

In `real_load` the variants take turns, and where the machine's speed changes from minute to minute
that change is all one sees. Here both serve the same load at once, so that it meets both, and then
once more with the cores exchanged. Reported for each rate, a share of the capacity, are mean
latencies, their p99 and searches a second, as ratios with 95 % intervals by bootstrap over loads,
and the ratio of the means of every pair. What was measured is appended to
`runs/mcts/together.jsonl`, and a second call resumes. The last line is JSON.

Hypothesis: as `boosting.py` simulates it; never below 0.98.
"""

from __future__ import annotations

import argparse
import asyncio
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from statistics import mean
from typing import Any

from flashedge.cli.progress import show_bar
from flashedge.files.journal import Journal
from scripts.bench.daemon import Daemon, read_problems, report, start_daemon
from scripts.bench.mcts.figures import Pool, compare, measure
from scripts.bench.mcts.load_record import LoadRecord
from scripts.bench.mcts.real_load import (
    FORGETFUL,
    USED,
    MeasuredLoad,
    Task,
    draw_at_once,
    list_arrivals,
    list_loads,
)
from scripts.bench.mcts.served_load import Arrival, grade, serve_load

BASE, BOOSTED = "PE+NE", "boost"
FILE = Path("runs/mcts/together.jsonl")
SHARES = (0.9, 0.0, 0.6, 0.3)

Rows = Sequence[Mapping[str, str]]
Records = Mapping[Task, MeasuredLoad]


@contextmanager
def start_on_core(core: int) -> Iterator[Daemon]:
    """A daemon whose processes all share one core."""
    own = os.sched_getaffinity(0)
    with ExitStack() as stack:
        os.sched_setaffinity(0, {core})
        try:
            daemon = stack.enter_context(start_daemon(FORGETFUL, profiled=True, queue_limit=10_000))
        finally:
            os.sched_setaffinity(0, own)
        yield daemon


async def run_both(
    daemons: Sequence[Daemon],
    variants: Sequence[str],
    rows: Rows,
    n: int,
    arrivals: Sequence[Arrival],
) -> list[LoadRecord]:
    """The load on both daemons at once, a variant each. Answers are graded once both are done."""
    found = await asyncio.gather(
        *(
            serve_load(daemon, rows, variant, n, arrivals)
            for daemon, variant in zip(daemons, variants, strict=True)
        )
    )
    return [await grade(record, rows) for record in found]


def measure_capacity(daemons: Sequence[Daemon], rows: Rows, n: int, size: int) -> float:
    """Searches a second that PE+NE finishes on each daemon while both serve all of them at once."""
    found = asyncio.run(run_both(daemons, (BASE, BASE), rows, n, draw_at_once(size)))
    return mean(size / one.makespan_s for one in found)


def measure_all(asked: argparse.Namespace, rows: Rows, daemons: Sequence[Daemon]) -> Records:
    """The records of all loads, by load and turn: each load has two, with the cores exchanged."""
    about = {"n": asked.n, "size": asked.size, "shares": asked.shares, "capacity": asked.capacity}
    turns = ((BASE, BOOSTED), (BOOSTED, BASE))
    with (
        Journal(asked.out, about, MeasuredLoad.from_json, lambda one: one.task) as kept,
        show_bar("serving", 2 * asked.loads * len(asked.shares), unit="pairs") as advance,
    ):
        for load in list_loads(asked):
            for share in asked.shares:
                arrivals = list_arrivals(asked, load, share)
                for turn, variants in enumerate(turns):
                    tasks = {name: Task(name, share, 2 * load + turn) for name in variants}
                    if not all(task in kept.records for task in tasks.values()):
                        pair = asyncio.run(run_both(daemons, variants, rows, asked.n, arrivals))
                        for task, record in zip(tasks.values(), pair, strict=True):
                            kept.append(MeasuredLoad(task=task, record=record))
                    advance(1)
        return dict(kept.records)


def compare_share(records: Records, share: float, first: int, loads: int) -> dict[str, Any]:
    """The figures of one rate."""
    numbers = range(2 * first, 2 * (first + loads))
    found = {
        name: [records[Task(name, share, number)].record for number in numbers]
        for name in (BASE, BOOSTED)
    }
    pools = {name: Pool(_join(turns)) for name, turns in found.items()}
    pairs = zip(found[BASE], found[BOOSTED], strict=True)
    ratios = [_mean_s(base) / _mean_s(boosted) for base, boosted in pairs]
    return {
        "ratios": ratios,
        "base": measure(pools[BASE]),
        "boosted": measure(pools[BOOSTED]),
        "gains": compare(pools[BOOSTED], pools),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--loads", type=int, default=5)
    parser.add_argument("--first", type=int, default=0, help="number of the first load")
    parser.add_argument("--size", type=int, default=25, help="searches of a load")
    parser.add_argument("--shares", type=float, nargs="+", default=list(SHARES))
    parser.add_argument("--capacity", type=float, help="searches a second; left out: measured")
    parser.add_argument("-n", type=int, default=8, help="rollouts")
    parser.add_argument("--out", type=Path, default=FILE)
    asked = parser.parse_args()
    rows = read_problems("heldout", USED)
    with ExitStack() as stack:
        cores = sorted(os.sched_getaffinity(0))[:2]
        if len(cores) < 2:
            raise SystemExit("two cores are needed, one for each daemon")
        daemons = [stack.enter_context(start_on_core(core)) for core in cores]
        os.sched_setaffinity(0, cores[:1])  # what this process takes, it takes from the same daemon
        measure_capacity(daemons, rows, asked.n, asked.size // 2)  # warm up
        if asked.capacity is None:
            asked.capacity = round(measure_capacity(daemons, rows, asked.n, asked.size), 3)
        print(f"capacity: {asked.capacity} searches a second (--capacity to go on with it)")
        records = measure_all(asked, rows, daemons)
    report(
        n=asked.n,
        loads=asked.loads,
        size=asked.size,
        capacity_per_s=asked.capacity,
        shares={
            f"{share:g}": compare_share(records, share, asked.first, asked.loads)
            for share in asked.shares
        },
    )


def _mean_s(record: LoadRecord) -> float:
    mean: float = measure(Pool([record]))["mean_s"]
    return mean


def _join(turns: Sequence[LoadRecord]) -> list[LoadRecord]:
    """The two records of each load as one: a load is a sample, whichever core it ran on."""
    return [
        LoadRecord(
            searches=one.searches + other.searches,
            makespan_s=one.makespan_s + other.makespan_s,
            busy_share=(one.busy_share + other.busy_share) / 2,
            boosted_share=(one.boosted_share + other.boosted_share) / 2,
            missed_share=0.0,
            preemptions=one.preemptions + other.preemptions,
        )
        for one, other in zip(turns[::2], turns[1::2], strict=True)
    ]


if __name__ == "__main__":
    main()
