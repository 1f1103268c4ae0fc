"""Boosting against exits alone on real engines, at the same time: two daemons, a core for each.

    python -m scripts.bench.mcts.together [--loads 5] [--size 25] [--share 0.9] [--capacity 0.76]

In `real_load` the variants take turns, and where the machine's speed changes from minute to minute
that change is all one sees. Here both serve the same load at once, so that it meets both, and then
once more with the cores exchanged. Reported are mean latencies, their p99 and searches a second, as
ratios with 95 % intervals by bootstrap over loads, and the ratio of the means of every pair. The
last line is JSON.

Hypothesis: as `boosting.py` simulates it; never below 0.98.
"""

from __future__ import annotations

import argparse
import asyncio
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager

from flashedge.cli.progress import show_bar
from scripts.bench.daemon import Daemon, read_problems, report, start_daemon
from scripts.bench.mcts.figures import Pool, compare, measure
from scripts.bench.mcts.load_record import LoadRecord
from scripts.bench.mcts.real_load import (
    FORGETFUL,
    USED,
    Arrival,
    list_arrivals,
    measure_capacity,
    run_load,
)

BASE, BOOSTED = "PE+NE", "boost"


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
    rows: Sequence[Mapping[str, str]],
    n: int,
    arrivals: Sequence[Arrival],
) -> dict[str, LoadRecord]:
    """The load on both daemons at once, a variant each."""
    found = await asyncio.gather(
        *(
            run_load(daemon, rows, variant, n, arrivals)
            for daemon, variant in zip(daemons, variants, strict=True)
        )
    )
    return dict(zip(variants, found, strict=True))


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--loads", type=int, default=5)
    parser.add_argument("--size", type=int, default=25, help="searches of a load")
    parser.add_argument("--share", type=float, default=0.9, help="of the capacity")
    parser.add_argument("--capacity", type=float, default=0.76, help="searches a second")
    parser.add_argument("-n", type=int, default=8, help="rollouts")
    asked = parser.parse_args()
    asked.shares = [asked.share]
    rows = read_problems("heldout", USED)
    found: dict[str, list[LoadRecord]] = {BASE: [], BOOSTED: []}
    ratios = []
    with ExitStack() as stack, show_bar("serving", 2 * asked.loads, unit="pairs") as advance:
        cores = sorted(os.sched_getaffinity(0))[:2]
        daemons = [stack.enter_context(start_on_core(core)) for core in cores]
        for daemon in daemons:
            measure_capacity(daemon, rows, asked.n, asked.size // 2)  # warm up
        for load in range(asked.loads):
            arrivals = list_arrivals(asked, load, asked.share)
            for variants in ((BASE, BOOSTED), (BOOSTED, BASE)):
                pair = asyncio.run(run_both(daemons, variants, rows, asked.n, arrivals))
                for name, record in pair.items():
                    found[name].append(record)
                means = {name: measure(Pool([one]))["mean_s"] for name, one in pair.items()}
                ratios.append(means[BASE] / means[BOOSTED])
                print(f"load {load}, {variants[0]} first: {ratios[-1]:.3f}", flush=True)
                advance(1)
    pools = {name: Pool(_join(records)) for name, records in found.items()}
    report(
        n=asked.n,
        loads=asked.loads,
        size=asked.size,
        share=asked.share,
        ratios=ratios,
        base=measure(pools[BASE]),
        boosted=measure(pools[BOOSTED]),
        gains=compare(pools[BOOSTED], pools),
    )


def _join(records: Sequence[LoadRecord]) -> list[LoadRecord]:
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
        for one, other in zip(records[::2], records[1::2], strict=True)
    ]


if __name__ == "__main__":
    main()
