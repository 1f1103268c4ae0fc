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
import os
from collections.abc import Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, replace
from pathlib import Path
from random import Random
from typing import Any, NamedTuple, Self

import httpx
import psutil

from flashedge import events
from flashedge.benchmark.grades import grade_pairs
from flashedge.cli.progress import show_bar
from flashedge.client import follow
from flashedge.client.async_client import AsyncClient
from flashedge.config import load_config
from flashedge.daemon import control
from flashedge.files.journal import Journal
from flashedge.runtime.run import create_run_id
from scripts.bench.daemon import Daemon, read_problems, report, start_daemon
from scripts.bench.flashtts.study import format_table
from scripts.bench.mcts.boosting import HEAD, SATURATED, format_row
from scripts.bench.mcts.figures import Pool, compare, measure
from scripts.bench.mcts.forgetful_daemon import ROUTE
from scripts.bench.mcts.load_record import LoadRecord, SearchRecord, draw_times
from scripts.bench.mcts.variants import BRANCHING, VARIANTS, N
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Arrival:
    """A problem and when it arrives."""

    number: int
    at_s: float
    seed: int


def build_body(variant: str, row: Mapping[str, str], seed: int, n: int) -> dict[str, Any]:
    """The request of a search."""
    chosen = VARIANTS[variant]
    body = {"problem": row["problem"], "seed": seed, "branching": BRANCHING}
    if chosen.strategy == "beam":
        return {**body, "strategy": "beam", "n": 8}
    usual = {"strategy": "mcts", "n": n, "aggregate": "prod", "selection": "best"}
    return {**body, **usual, "options": dict(chosen.options)}


async def serve(client: AsyncClient, body: Mapping[str, Any], at: Arrival) -> SearchRecord:
    """Run one search to its end. Its answer's place says whether it is right: not yet graded."""
    now, run = asyncio.get_running_loop().time, create_run_id()
    arrived_s, started_s, boosts = now(), None, 0
    result: Mapping[str, Any] | None = None
    await client.submit({**body, "id": run})
    async with aclosing(follow.follow(client, run, follow.UNATTENDED)) as pieces:
        async for piece in pieces:
            for _, event in piece:
                match event:
                    case events.RunStarted():
                        started_s = now()
                    case events.RolloutsAllowed(rollouts=rollouts):
                        boosts += rollouts > 1
                    case events.RunFinished(result=found):
                        result = found
                    case _:
                        pass
    if result is None:
        raise SystemExit(f"run {run} has no result")
    latency_s = now() - arrived_s
    usage = result["usage"]
    return SearchRecord(
        problem=at.number,
        arrived_s=at.at_s,
        wait_s=0.0 if started_s is None else started_s - arrived_s,
        latency_s=latency_s,
        tokens=usage["tree_tokens"] + usage["cancelled_tokens"],
        right=False,
        answer=result["answer"],
        cut_by=result["cut_by"],
        unlikely=result["unlikely"],
        rollouts=len(result["completions"]),
        boosts=boosts,
        cancelled_tokens=usage["cancelled_tokens"],
    )


async def run_load(
    daemon: Daemon,
    rows: Sequence[Mapping[str, str]],
    variant: str,
    n: int,
    arrivals: Sequence[Arrival],
) -> LoadRecord:
    """Let the engines forget, then send the searches at their times and await all. Their answers
    are not graded."""
    async with httpx.AsyncClient(timeout=60) as plain:
        (await plain.post(daemon.url + ROUTE)).raise_for_status()
    config = load_config(environ=daemon.env)
    loop = asyncio.get_running_loop()
    async with control.connect_async(config, max_streams=2 * len(arrivals)) as client:
        before, cpu_s, began_s = await client.status(), sum_cpu_s(daemon.pid), loop.time()
        async with asyncio.TaskGroup() as group:
            tasks = []
            for at in arrivals:
                await asyncio.sleep(max(0.0, began_s + at.at_s - loop.time()))
                body = build_body(variant, rows[at.number], at.seed, n)
                tasks.append(group.create_task(serve(client, body, at)))
        makespan_s = loop.time() - began_s
        after, cpu_s = await client.status(), sum_cpu_s(daemon.pid) - cpu_s
    opened, ran = (
        after["scheduling"][name] - before["scheduling"][name]
        for name in ("boost_open_s", "boost_running_s")
    )
    return LoadRecord(
        searches=tuple(task.result() for task in tasks),
        makespan_s=makespan_s,
        busy_share=cpu_s / makespan_s / len(os.sched_getaffinity(daemon.pid)),
        boosted_share=opened / ran if ran else 0.0,
        missed_share=0.0,
        preemptions=count_preemptions(after) - count_preemptions(before),
    )


async def grade(record: LoadRecord, rows: Sequence[Mapping[str, str]]) -> LoadRecord:
    """The record with its answers graded."""
    right = {one.problem: rows[one.problem]["answer"] for one in record.searches}
    answers = ((one.problem, one.answer) for one in record.searches if one.answer)
    graded = await grade_pairs(answers, right)
    return replace(
        record,
        searches=tuple(
            replace(one, right=bool(one.answer) and graded[one.problem, one.answer])
            for one in record.searches
        ),
    )


def sum_cpu_s(pid: int) -> float:
    """Processor seconds of a process and of those below it that live."""
    daemon = psutil.Process(pid)
    times = [p.cpu_times() for p in (daemon, *daemon.children(recursive=True))]
    return float(sum(t.user + t.system for t in times))


def count_preemptions(status: Mapping[str, Any]) -> int:
    return sum((one["view"] or {}).get("preemptions", 0) for one in status["engines"].values())


def list_arrivals(asked: argparse.Namespace, load: int, share: float) -> list[Arrival]:
    """Each load and rate has problems of its own. Raises SystemExit where there are too few."""
    if asked.loads * len(asked.shares) * asked.size > USED:
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
    record = asyncio.run(run_load(daemon, rows, "PE+NE", n, draw_at_once(size)))
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
        for load in range(asked.loads):
            for share in asked.shares:
                arrivals = list_arrivals(asked, load, share)
                for variant in rotate(names, load):
                    task = Task(variant, share, load)
                    if task not in kept.records:
                        record = asyncio.run(run_load(daemon, rows, variant, asked.n, arrivals))
                        record = asyncio.run(grade(record, rows))
                        kept.append(MeasuredLoad(task=task, record=record))
                    advance(1)
        return {task: one.record for task, one in kept.records.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--loads", type=int, default=4)
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
            variant: Pool([found[Task(variant, share, load)] for load in range(asked.loads)])
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
