"""What do gang scheduling, shortest program first and early exit bring on real engines?

    python -m scripts.bench.scheduling.real_programs [--seeds 3] [--programs 60]

A daemon with the bundled pair for each variant and seed, over HTTP, with a quick profile of the
device: chats, and searches by self-consistency of 4 to 32 paths, with so little KV memory that
requests wait in the engine too.
Lengths are predicted by what the daemon has seen: the load of another seed runs first and does not
count. Rates are multiples of the programs a second that fcfs finishes while all are there at once.
Every variant gets the same programs at the same times, paired by seed; the variants rotate. The
base deadline of each kind is its median latency at the lowest rate under fcfs; all difficulties
count 2.

A study that is interrupted goes on where it was: runs/scheduling/real_programs.jsonl. The last line
is JSON.
"""

from __future__ import annotations

import argparse
import asyncio
import secrets
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from flashedge.cli.progress import show_bar
from flashedge.config import load_config
from flashedge.daemon import control
from flashedge.files.journal import Journal
from flashedge.files.problems import FileProblem, read_problems
from scripts.bench.daemon import DATA, Daemon, report, start_daemon
from scripts.bench.scheduling.program_study import (
    VARIANTS,
    Task,
    add_variants,
    format_study,
    list_variants,
    plan,
    summarize,
)
from scripts.bench.scheduling.study import OUTPUT
from scripts.bench.smoke import parse_arguments
from scripts.bench.turns import rotate
from scripts.lab.benchmark.live import grade_pairs
from scripts.lab.benchmark.load.open_load import DaemonServer, Served, run_load
from scripts.lab.benchmark.load.plan import PlannedProgram
from scripts.lab.benchmark.load.timings import ProgramRecord

RATES = (0.3, 0.6, 0.9, 1.2, 2.0)
PATHS = (4, 8, 16, 32)
"""Of a search, by the number of its program."""
MIX = "chat=0.5,search=0.5"
KV_MIB = 8
"""Of the generator."""
WARM_UP_SEED, AT_ONCE = 1_000, 1e6
USED = 200
"""Problems."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """The programs of one variant, rate and seed. Implements `JournalRecord`."""

    task: Task
    programs: list[dict[str, Any]]

    def to_json(self) -> dict[str, Any]:
        return {"task": list(self.task), "programs": self.programs}

    @classmethod
    def from_json(cls, fields: Mapping[str, Any]) -> Cell:
        variant, rate, seed = fields["task"]
        return cls(task=(variant, rate, seed), programs=fields["programs"])


async def serve(
    daemon: Daemon,
    programs: Sequence[PlannedProgram],
    problems: Sequence[FileProblem],
    exits_early: bool,
) -> list[ProgramRecord]:
    """Run one load on the daemon. Its clients have no earlier texts to draft from."""
    records: list[ProgramRecord] = []
    load = secrets.token_hex(4)
    programs = [replace(each, client=f"{each.client} of {load}") for each in programs]
    config = load_config(environ=daemon.env)
    async with control.connect_async(config, max_streams=len(programs)) as client:
        servers = {
            paths: DaemonServer(
                client=client,
                problems=problems,
                model="bundled",
                search={"strategy": "self_consistency", "n": paths, "early_exit": exits_early},
            )
            for paths in PATHS
        }
        ids = [problem.id for problem in problems]

        async def serve_one(program: PlannedProgram) -> Served:
            return await servers[PATHS[program.number % len(PATHS)]].serve(program)

        await run_load(programs, serve_one, records.append, problem_ids=ids)
    return sorted(records, key=lambda record: record.number)


def measure_capacity(daemon: Daemon, count: int, problems: Sequence[FileProblem]) -> float:
    """Programs a second that are finished while all are there at once."""
    programs = plan(count, AT_ONCE, WARM_UP_SEED, MIX, len(problems))
    records = asyncio.run(serve(daemon, programs, problems, False))
    return len(records) / max(r.arrived_s + (r.latency_s or 0.0) for r in records)


def measure(
    asked: argparse.Namespace, problems: Sequence[FileProblem], kept: Journal[Task, Cell]
) -> None:
    names = list_variants(asked)
    with show_bar("serving", len(names) * len(asked.rates) * asked.seeds, unit="loads") as advance:
        for seed in range(asked.seeds):
            for variant in rotate(names, seed):
                left = [r for r in asked.rates if (variant, r, seed) not in kept.records]
                advance(len(asked.rates) - len(left))
                if not left:
                    continue
                chosen = VARIANTS[variant]
                settings = {**chosen.list_settings(), "kv_bytes": f"{KV_MIB}MiB,auto"}
                with start_daemon(profiled=True, **settings) as daemon:
                    measure_capacity(daemon, asked.programs, problems)  # the predictor learns
                    for rate in left:
                        programs = plan(
                            asked.programs, rate * asked.capacity, seed, MIX, len(problems)
                        )
                        records = asyncio.run(serve(daemon, programs, problems, chosen.exits_early))
                        rows = [record.to_json() for record in records]
                        kept.append(Cell(task=(variant, rate, seed), programs=rows))
                        advance(1)


def grade(cells: Collection[Cell], problems: Sequence[FileProblem]) -> dict[Task, float]:
    """The share of right answers of each task."""
    known = {p.id: p.answer for p in problems if p.answer is not None}
    pairs = [(row["problem"], row["answer"]) for cell in cells for row in cell.programs]
    is_right = asyncio.run(grade_pairs(pairs, known))
    return {
        cell.task: sum(is_right[row["problem"], row["answer"]] for row in cell.programs)
        / len(cell.programs)
        for cell in cells
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--programs", type=int, default=60)
    parser.add_argument("--rates", type=float, nargs="+", default=list(RATES))
    parser.add_argument("--seeds", type=int, default=3)
    add_variants(parser)
    parser.add_argument("--capacity", type=float, help="programs a second; left out: measured")
    asked = parse_arguments(parser, programs=4, rates=[1.0], seeds=1, variants=["sjf+gang"])
    problems = read_problems(DATA / "heldout.jsonl", USED)
    if asked.capacity is None:
        settings = {**VARIANTS["fcfs"].list_settings(), "kv_bytes": f"{KV_MIB}MiB,auto"}
        with start_daemon(profiled=True, **settings) as daemon:
            measure_capacity(daemon, asked.programs, problems)
            asked.capacity = round(measure_capacity(daemon, asked.programs, problems), 2)
        print(f"capacity: {asked.capacity} programs a second (--capacity to go on with it)")
    about = {
        "programs": asked.programs,
        "kv_mib": KV_MIB,
        "capacity_per_s": asked.capacity,
        "is_profiled": True,
    }
    path = OUTPUT / "real_programs.jsonl"
    with Journal(path, about, Cell.from_json, key=lambda cell: cell.task) as kept:
        measure(asked, problems, kept)
        cells = list(kept.records.values())
    found = {c.task: [ProgramRecord.from_json(row) for row in c.programs] for c in cells}
    figures = summarize(found, grade(cells, problems))
    print(format_study(figures, "of the capacity") + "\n")
    report(**about, seeds=asked.seeds, mix=MIX, paths=PATHS, **figures)


if __name__ == "__main__":
    main()
