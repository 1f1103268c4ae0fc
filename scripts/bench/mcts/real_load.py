"""Does boosting ever hurt on real engines? MCTS under load on a daemon with the bundled pair.

    python -m scripts.bench.mcts.real_load [--loads 4] [--size 20] [--shares 0 0.3 0.5 0.7 0.9]

The variants of `variants.py` take turns on one daemon: for each load and rate every variant serves
the same problems with the same seeds at the same times, and the next load begins with another
variant. Before each, the engines drop their KV and the verifier its scores (`forgetful_daemon`), so
that no variant finds what another one has computed. A rate is given
as a share of the searches a second that PE+NE finishes when all arrive at once (`--capacity`, else
measured on other seeds); 0 is all at once. The daemon has a profile, which boosting needs.

`card busy` is the processor time of daemon and engines, relative to the time that passed on the
processors the daemon may use (`taskset -c 0 python -m …`). Intervals: 95 %, by bootstrap over
loads. What was measured is appended to `runs/mcts/real_load.jsonl`, and a second call resumes. The
last line is JSON.

Hypothesis: as `boosting.py` simulates it.
"""

from __future__ import annotations

import argparse
import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any, NamedTuple, Self

from flashedge.cli.progress import show_bar
from flashedge.files.journal import Journal
from scripts.bench.daemon import Daemon, read_problems, report, start_daemon
from scripts.bench.flashtts.study import format_table
from scripts.bench.mcts.boosting import HEAD, SATURATED, format_row
from scripts.bench.mcts.figures import Pool, compare, measure
from scripts.bench.mcts.load_record import LoadRecord, draw_times
from scripts.bench.mcts.served_load import Arrival, grade, serve_load
from scripts.bench.mcts.variants import VARIANTS, N
from scripts.bench.turns import rotate

FILE = Path("runs/mcts/real_load.jsonl")
SHARES = (SATURATED, 0.3, 0.5, 0.7, 0.9)
FORGETFUL = "scripts.bench.mcts.forgetful_daemon"
USED = 500
WARM_UP_SEED = 100_000
"""Added to the seeds of the load that measures the capacity."""


class Task(NamedTuple):
    """Identifies a load."""

    variant: str
    share: float
    load: int


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


def measure_capacity(daemon: Daemon, rows: Sequence[Mapping[str, str]], n: int, size: int) -> float:
    """Searches a second that PE+NE finishes when all arrive at once."""
    record = asyncio.run(serve_load(daemon, rows, "PE+NE", n, draw_at_once(size)))
    return len(record.searches) / record.makespan_s


def draw_at_once(size: int) -> list[Arrival]:
    """Problems drawn from all, since the first ones are easier than the rest."""
    numbers = Random(WARM_UP_SEED).sample(range(USED), size)
    return [Arrival(number=i, at_s=0.0, seed=WARM_UP_SEED + i) for i in numbers]


def measure_all(
    asked: argparse.Namespace, rows: Sequence[Mapping[str, str]], daemon: Daemon
) -> dict[Task, LoadRecord]:
    names = list(asked.variants)
    about = {"n": asked.n, "size": asked.size, "shares": asked.shares, "capacity": asked.capacity}
    total = len(names) * len(asked.shares) * asked.loads
    with (
        Journal(asked.out, about, MeasuredLoad.from_json, lambda one: one.task) as kept,
        show_bar("serving", total, unit="loads") as advance,
    ):
        for load in list_loads(asked):
            for share in asked.shares:
                arrivals = list_arrivals(asked, load, share)
                for variant in rotate(names, load):
                    task = Task(variant, share, load)
                    if task not in kept.records:
                        record = asyncio.run(serve_load(daemon, rows, variant, asked.n, arrivals))
                        record = asyncio.run(grade(record, rows))
                        kept.append(MeasuredLoad(task=task, record=record))
                    advance(1)
        return {task: one.record for task, one in kept.records.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--loads", type=int, default=4)
    parser.add_argument("--first", type=int, default=0, help="number of the first load")
    parser.add_argument("--size", type=int, default=20, help="searches of a load")
    parser.add_argument("--shares", type=float, nargs="+", default=list(SHARES))
    parser.add_argument("-n", type=int, default=N, help="rollouts")
    parser.add_argument("--variants", nargs="+", choices=VARIANTS, default=list(VARIANTS))
    parser.add_argument("--capacity", type=float, help="searches a second; left out: measured")
    parser.add_argument("--out", type=Path, default=FILE)
    asked = parser.parse_args()
    rows = read_problems("heldout", USED)
    with start_daemon(FORGETFUL, profiled=True, queue_limit=10_000) as daemon:
        measure_capacity(daemon, rows, asked.n, asked.size // 2)  # warm up
        if asked.capacity is None:
            asked.capacity = round(measure_capacity(daemon, rows, asked.n, asked.size), 3)
        print(f"capacity: {asked.capacity} searches a second (--capacity to go on with it)")
        found = measure_all(asked, rows, daemon)
    figures: dict[str, Any] = {}
    lines = []
    for share in asked.shares:
        pools = {
            variant: Pool([found[Task(variant, share, load)] for load in list_loads(asked)])
            for variant in asked.variants
        }
        figures[f"{share:g}"] = {
            variant: {**measure(pool), **compare(pool, pools)} for variant, pool in pools.items()
        }
        cell = f"{share:.0%}" if share else "all at once"
        lines += [format_row(cell, name, row) for name, row in figures[f"{share:g}"].items()]
    print(format_table(HEAD, lines) + "\n")
    report(
        n=asked.n,
        loads=asked.loads,
        size=asked.size,
        capacity_per_s=asked.capacity,
        shares=figures,
    )


if __name__ == "__main__":
    main()
