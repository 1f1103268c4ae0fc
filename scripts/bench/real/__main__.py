"""How right, and at what cost, is a pair on real problems, by greedy decoding, votes and searches?

    python -m scripts.bench.real run --problems gsm8k_test.jsonl --problems math500.jsonl \\
        --limit 200 --limit 100 --ways greedy,vote-16,weighted-16,best_of_n-16,beam-16 \\
        --pair NAME --output runs/real/NAME.jsonl [--minutes 10] [--alone]
    python -m scripts.bench.real page runs/real/NAME.jsonl … [--ways …]
    python -m scripts.bench.real recorded SAMPLES

`run` solves problems on the daemon, which it starts if none runs and leaves running, as many at
once as the setting `max_running` says. A line is written when a problem is solved in one way, so it
may end at any time, and the same command resumes. The problems come in one shuffled order that is
always the same. vote, weighted (vote) and best_of_n choose among the same samples, so these are
drawn once, as many as the largest n asks for. --alone: run each way by itself, one problem at a
time, for its seconds; a few problems are enough, and these answers don't count.

`page` prints a table for each file of problems, from the records of one pair. `recorded` prints how
often votes of recorded answers are right (SAMPLES: as in `scripts.bench.certainty.votes`).
"""

import argparse
import asyncio
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from flashedge.cli import output
from flashedge.cli.progress import show_bar
from flashedge.config import Config, load_config
from flashedge.daemon import control
from flashedge.errors import ConfigError, FlashEdgeError
from flashedge.models.registry import find_pair
from scripts.bench.certainty.samples import make_vote, read_samples
from scripts.bench.daemon import DATA, report, start_usual_daemon
from scripts.bench.real.measure import Solver, Task, describe_pair, list_tasks, order_problems
from scripts.bench.real.records import (
    BEST,
    WEIGHTED,
    Record,
    RecordFile,
    Way,
    parse_ways,
    read_records,
)
from scripts.bench.real.table import write_tables, write_votes
from scripts.bench.smoke import SMALL, SMALL_SAMPLES, parse_arguments
from scripts.card.machine import describe_machine


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    commands = parser.add_subparsers(dest="command", required=True)
    run = commands.add_parser("run", help="solve problems")
    run.add_argument("--problems", type=Path, action="append", required=True, help="JSON lines")
    run.add_argument("--limit", type=int, action="append", help="of each file, in their order")
    run.add_argument("--pair", help="default: the setting `pair`")
    run.add_argument("--ways", required=True, help="for example greedy,beam-16")
    run.add_argument("--seed", type=int, default=0)
    run.add_argument("--minutes", type=float, help="cancel what is open by then")
    run.add_argument("--alone", action="store_true", help="one run at a time, for its seconds")
    run.add_argument("--output", type=Path, required=True)
    page = commands.add_parser("page", help="print the tables")
    page.add_argument("records", type=Path, nargs="+")
    page.add_argument("--ways", help="the rows; default: all")
    recorded = commands.add_parser("recorded", help="print the votes of recorded answers")
    recorded.add_argument("samples", type=Path)
    asked = parse_arguments(
        parser,
        arguments,
        problems=[DATA / "heldout.jsonl"],
        limit=[1],
        ways="greedy,vote-4",
        pair="bundled",
        records=[SMALL / "real_records.jsonl"],
        samples=SMALL_SAMPLES["samples"],
    )
    try:
        if asked.command == "recorded":
            rows = enumerate(read_samples(asked.samples))
            print("\n".join(write_votes([make_vote(row, str(i)) for i, row in rows])))
            return
        if asked.command == "page":
            ways = parse_ways(asked.ways) if asked.ways else ()
            print("\n".join(write_tables(read_records(asked.records), ways)))
            return
        limits = asked.limit or [None]
        if len(limits) == 1:
            limits *= len(asked.problems)
        if len(limits) != len(asked.problems):
            parser.error("give --limit once, or once for each --problems")
        work = measure(
            config=load_config({"pair": asked.pair}),
            files=asked.problems,
            limits=limits,
            ways=parse_ways(asked.ways),
            target=asked.output,
            seed=asked.seed,
            minutes=asked.minutes,
            alone=asked.alone,
        )
        report(**asyncio.run(work))
    except FlashEdgeError as error:
        parser.exit(1, f"{error.line}\n")


async def measure(
    *,
    config: Config,
    files: Sequence[Path],
    limits: Sequence[int | None],
    ways: Sequence[Way],
    target: Path,
    seed: int = 0,
    minutes: float | None = None,
    alone: bool = False,
) -> dict[str, Any]:
    """Solve what `target` does not have yet. Returns what was done. minutes: with the start of the
    daemon."""
    began = time.monotonic()
    chosen = find_pair(config.pair, config)
    if not chosen.has_verifier and any(way.name in (WEIGHTED, BEST) for way in ways):
        told = f"{chosen.name} has no verifier for weighted votes and best_of_n"
        raise ConfigError(told, hint="leave them out", param="ways")
    pair = describe_pair(chosen, config, seed)
    problems = order_problems(files, limits)
    kept = RecordFile(target, pair)
    try:
        tasks = list_tasks(problems, ways, kept.records, alone=alone)
        before = len(kept.records)
        if tasks:
            start_usual_daemon(config)
            until = None if minutes is None else began + 60 * minutes
            await _solve(config, pair, tasks, kept, until, alone)
        new = kept.records[before:]
        return {
            "solved": len(new),
            "failed": sum(record.error is not None for record in new),
            "left": len(tasks) - len(new),
            "tokens": sum(record.tree_tokens for record in new),
            "seconds": round(time.monotonic() - began, 1),
        }
    finally:
        kept.close()


async def _solve(
    config: Config,
    pair: Mapping[str, Any],
    tasks: Sequence[Task],
    kept: RecordFile,
    until: float | None,
    alone: bool,
) -> None:
    """until: on the monotonic clock."""
    async with control.connect_async(config, name="bench-real") as client:
        with show_bar("measuring", len(tasks), unit="runs") as advance:

            def append(record: Record) -> None:
                kept.append(record)
                advance(1)

            solver = Solver(client, pair, describe_machine(), alone=alone, append=append)
            try:
                async with asyncio.timeout(until and until - time.monotonic()) as limit:
                    # One more than may run, so that none of them idles.
                    await solver.solve_all(tasks, 1 if alone else config.max_running + 1)
            except TimeoutError:
                if not limit.expired():
                    raise
                output.note("the time is over; the same command resumes")
            finally:
                await solver.grader.close()


if __name__ == "__main__":
    main()
