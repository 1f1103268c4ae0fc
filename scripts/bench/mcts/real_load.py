"""Does boosting ever hurt on real engines? MCTS under load, two variants at the same time.

    python -m scripts.bench.mcts.real_load [--loads 4] [--size 25] [--shares 0 0.6 0.8 1.0 1.2]

Two daemons with the bundled pair, a core for each, serve the same problems with the same seeds at
the same times, each with another variant of `variants.py`. So a change of the machine's speed meets
both. Exits alone and boosting run once more with the cores exchanged. The others have the other
core in every second load, so take an even number of loads. Before each load the engines drop their
KV and the verifier its scores (`forgetful_daemon`), so that no variant finds what another one has
computed. A rate is given as a share of the searches a second that PE+NE+cut finishes on a core when
all arrive at once (`--capacity`, else measured on other seeds); 0 is all at once. The daemons have
a profile, which boosting needs.

`card busy` is the processor time of a daemon and its engines, relative to the time that passed.
Intervals: 95 %, by bootstrap over loads. What was measured is appended to
`runs/mcts/real_load.jsonl`, and a second call resumes. The last line is JSON.

Every variant has the default of `max_running`, 8 searches at once, whatever the rollouts of each;
`equal_parallelism` bounds both by one M. Hypothesis: boosting is never below 0.98.
"""

import argparse
import asyncio
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from random import Random
from statistics import mean
from typing import Any, NamedTuple, Self

from flashedge.cli.progress import show_bar
from flashedge.files.journal import Journal
from scripts.bench.daemon import Daemon, read_problems, report, start_daemon
from scripts.bench.flashtts.study import format_table
from scripts.bench.mcts.equal_parallelism import BASE, SATURATED, format_ratio
from scripts.bench.mcts.figures import Pool, compare, list_latencies, measure
from scripts.bench.mcts.load_record import LoadRecord, draw_times, join
from scripts.bench.mcts.served_load import Arrival, grade, serve_load
from scripts.bench.smoke import parse_arguments
from scripts.bench.turns import rotate

Pair = tuple[str, str]

FILE = Path("runs/mcts/real_load.jsonl")
SHARES = (SATURATED, 0.6, 0.8, 1.0, 1.2)
BOOSTED = "boost"
EXCHANGED: Sequence[Pair] = ((BASE, BOOSTED), (BOOSTED, BASE))
OTHERS: Sequence[Pair] = (("serial", "PE"), ("parallel", "beam-8"))
"""Pairs that run once, with other cores in every second load."""
FORGETFUL = "scripts.bench.mcts.forgetful_daemon"
USED = 500
WARM_UP_SEED = 100_000
"""Added to the seeds of the load that measures the capacity."""
STATISTICS = ("mean", "p50", "p99", "throughput")
HEAD = (
    "rate",
    "variant",
    "p50 s",
    "p99 s",
    "searches/s",
    "tokens",
    "card busy",
    "gate open",
    f"mean over {BASE}",
    "p50",
    "p99",
    "searches/s",
    "p99 below serial",
    "below PE",
    "right",
    "points over the first",
)

Rows = Sequence[Mapping[str, str]]


class Task(NamedTuple):
    """Identifies a variant's turn at a load."""

    variant: str
    share: float
    load: int
    core: int


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredLoad:
    """One load. Implements `JournalRecord`."""

    task: Task
    record: LoadRecord

    def to_json(self) -> dict[str, Any]:
        return {"task": list(self.task), "record": self.record.to_json()}

    @classmethod
    def from_json(cls, fields: Mapping[str, Any]) -> Self:
        return cls(task=Task(*fields["task"]), record=LoadRecord.from_json(fields["record"]))


Records = Mapping[Task, MeasuredLoad]


@contextmanager
def start_daemons(cores: Sequence[int]) -> Iterator[Sequence[Daemon]]:
    """A daemon on each core, with all of its processes. This process stays on the first one: what
    it takes, it takes from the same daemon."""
    own = os.sched_getaffinity(0)
    with ExitStack() as stack:
        daemons = []
        try:
            for core in cores:
                os.sched_setaffinity(0, {core})
                started = start_daemon(FORGETFUL, profiled=True, queue_limit=10_000)
                daemons.append(stack.enter_context(started))
            os.sched_setaffinity(0, cores[:1])
            yield daemons
        finally:
            os.sched_setaffinity(0, own)


async def serve_pair(
    daemons: Sequence[Daemon], variants: Pair, rows: Rows, n: int, arrivals: Sequence[Arrival]
) -> list[LoadRecord]:
    """The load on both daemons at once, a variant each. Answers are graded once both are done."""
    found = await asyncio.gather(
        *(
            serve_load(daemon, rows, variant, n, arrivals)
            for daemon, variant in zip(daemons, variants, strict=True)
        )
    )
    return [await grade(record, rows) for record in found]


def list_loads(asked: argparse.Namespace) -> range:
    """The numbers of the loads."""
    return range(asked.first, asked.first + asked.loads)


def list_arrivals(asked: argparse.Namespace, load: int, share: float) -> list[Arrival]:
    """Each load and rate has problems of its own. Raises SystemExit where there are too few."""
    if list_loads(asked).stop * len(asked.shares) * asked.size > USED:
        raise SystemExit(f"loads x shares x size are more than the {USED} problems")
    numbers = list(range(USED))
    Random(0).shuffle(numbers)
    first = (load * len(asked.shares) + asked.shares.index(share)) * asked.size
    chosen = [numbers[i] for i in range(first, first + asked.size)]
    rate = share * asked.capacity if share else 0.0
    times = draw_times(asked.size, rate, load)
    return [Arrival(number=i, at_s=t, seed=i) for i, t in zip(chosen, times, strict=True)]


def measure_capacity(daemons: Sequence[Daemon], rows: Rows, n: int, size: int) -> float:
    """Searches a second that PE+NE+cut finishes on each daemon while both serve all at once. The
    problems are drawn from all, since the first ones are easier than the rest."""
    numbers = Random(WARM_UP_SEED).sample(range(USED), size)
    arrivals = [Arrival(number=i, at_s=0.0, seed=WARM_UP_SEED + i) for i in numbers]
    found = asyncio.run(serve_pair(daemons, (BASE, BASE), rows, n, arrivals))
    return mean(size / one.makespan_s for one in found)


def measure_all(asked: argparse.Namespace, rows: Rows, daemons: Sequence[Daemon]) -> Records:
    about = {"n": asked.n, "size": asked.size, "shares": asked.shares, "capacity": asked.capacity}
    pairs = EXCHANGED if asked.boosting_only else (*EXCHANGED, *OTHERS)
    with (
        Journal(asked.out, about, MeasuredLoad.from_json, lambda one: one.task) as kept,
        show_bar("serving", len(pairs) * asked.loads * len(asked.shares), unit="pairs") as advance,
    ):
        for load in list_loads(asked):
            for share in asked.shares:
                arrivals = list_arrivals(asked, load, share)
                for chosen in rotate(pairs, load):
                    pair = chosen[::-1] if load % 2 else chosen
                    tasks = [Task(name, share, load, core) for core, name in enumerate(pair)]
                    if not all(task in kept.records for task in tasks):
                        served = asyncio.run(serve_pair(daemons, pair, rows, asked.n, arrivals))
                        for task, record in zip(tasks, served, strict=True):
                            if task not in kept.records:
                                kept.append(MeasuredLoad(task=task, record=record))
                    advance(1)
        return dict(kept.records)


def pool_loads(records: Records, variant: str, share: float, loads: Sequence[int]) -> Pool:
    """A variant's loads. Turns on both cores are one load: a load is a sample, wherever it ran."""
    tasks = [[Task(variant, share, load, core) for core in (0, 1)] for load in loads]
    return Pool([join([records[t].record for t in turns if t in records]) for turns in tasks])


def describe_share(
    records: Records, share: float, loads: Sequence[int], variants: Sequence[str]
) -> dict[str, Any]:
    """The figures of one rate: of each variant, and the ratio of the means of PE+NE+cut and boost
    in each pair that ran at the same time."""
    pools = {name: pool_loads(records, name, share, loads) for name in variants}
    ratios = [
        mean(list_latencies([records[Task(BASE, share, load, core)].record]))
        / mean(list_latencies([records[Task(BOOSTED, share, load, 1 - core)].record]))
        for load in loads
        for core in (0, 1)
    ]
    bases = [name for name in ("serial", "PE", BASE) if name in pools]
    rows = {
        name: {**measure(pool), **compare(pool, pools, bases, STATISTICS)}
        for name, pool in pools.items()
    }
    return {"variants": rows, "ratios": ratios}


def format_row(rate: str, name: str, row: Mapping[str, Any]) -> tuple[str, ...]:
    """Points are over the first variant: serial, or PE+NE+cut with --boosting-only."""
    value, low, high = row["right_difference"]
    return (
        rate,
        name,
        f"{row['p50_s']:.1f}",
        f"{row['p99_s']:.1f}",
        f"{row['searches_per_s']:.3f}",
        f"{row['tokens']:.0f}",
        f"{row['busy_share']:.0%}",
        f"{row['boosted_share']:.0%}",
        *(format_ratio(row, statistic, BASE) for statistic in STATISTICS),
        format_ratio(row, "p99", "serial"),
        format_ratio(row, "p99", "PE"),
        f"{row['right']:.3f}",
        f"{100 * value:+.1f} ({100 * low:+.1f} to {100 * high:+.1f})",
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--loads", type=int, default=4)
    parser.add_argument("--first", type=int, default=0, help="number of the first load")
    parser.add_argument("--size", type=int, default=25, help="searches of a load")
    parser.add_argument("--shares", type=float, nargs="+", default=list(SHARES))
    parser.add_argument("-n", type=int, default=8, help="rollouts")
    parser.add_argument("--boosting-only", action="store_true", help="only PE+NE+cut and boost")
    parser.add_argument("--capacity", type=float, help="searches a second; left out: measured")
    parser.add_argument("--out", type=Path, default=FILE)
    asked = parse_arguments(parser, loads=1, size=3, n=4, shares=[0.0, 1.0])
    cores = sorted(os.sched_getaffinity(0))[:2]
    if len(cores) < 2:
        raise SystemExit("two cores are needed, one for each daemon")
    rows = read_problems("heldout", USED)
    with start_daemons(cores) as daemons:
        measure_capacity(daemons, rows, asked.n, asked.size // 2)  # warm up
        if asked.capacity is None:
            asked.capacity = round(measure_capacity(daemons, rows, asked.n, asked.size), 3)
        print(f"capacity: {asked.capacity} searches a second (--capacity to go on with it)")
        records = measure_all(asked, rows, daemons)
    pairs = EXCHANGED[:1] if asked.boosting_only else (*EXCHANGED[:1], *OTHERS)
    variants = [name for pair in pairs for name in pair]
    figures = {
        share: describe_share(records, share, list_loads(asked), variants) for share in asked.shares
    }
    lines = [
        format_row(f"{share:.0%}" if share else "all at once", name, row)
        for share, found in figures.items()
        for name, row in found["variants"].items()
    ]
    print(format_table(HEAD, lines) + "\n")
    report(
        n=asked.n,
        loads=asked.loads,
        size=asked.size,
        capacity_per_s=asked.capacity,
        shares={f"{share:g}": found for share, found in figures.items()},
    )


if __name__ == "__main__":
    main()
