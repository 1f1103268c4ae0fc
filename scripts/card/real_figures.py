"""Solves real problems on a card in many ways, what has most worth first. See real_figures.sh.

Each stage is a call of `scripts.bench.real` with the minutes that are left, to one file of records.
A stage that failed, or in which runs failed, is repeated once: a dead engine is up again by then.
After each call FOLDER/table.md has what `page` prints of the ways of each stage that was reached.
"""

import argparse
import asyncio
import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from flashedge.config import load_config
from scripts.bench.daemon import CLI, find_free_port, report
from scripts.bench.real.__main__ import measure
from scripts.bench.real.records import parse_ways, read_records
from scripts.bench.real.table import write_tables
from scripts.card.results import Results, make_folder, parse_options

MAX_RUNNING = "32"
"""Searches at a time, so that the card is full: one of 16 paths is a small batch for it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """One call. limits: problems of the first file, and of each further one. None: all."""

    name: str
    ways: str
    limits: tuple[int | None, int | None] = (200, 100)
    alone: bool = False
    share: float = 1.0
    """Of the minutes that are left."""


SMALLEST = "greedy,vote-16,weighted-16,best_of_n-16,beam-16"
WAYS = ("vote", "weighted", "best_of_n", "beam", "dvts", "rebase", "mcts")


def list_ways(n: int) -> str:
    return ",".join(("greedy", *(f"{name}-{n}" for name in WAYS)))


STAGES: Sequence[Stage] = (
    Stage(name="the smallest table", ways=SMALLEST, share=0.85),
    Stage(name="seconds of runs alone", ways=SMALLEST, limits=(5, 5), alone=True, share=0.5),
    Stage(name="the other searches, n = 16", ways=list_ways(16)),
    Stage(name="n = 4", ways=list_ways(4)),
    Stage(name="samples, n = 64", ways="greedy,vote-64,weighted-64,best_of_n-64"),
    Stage(name="searches, n = 64", ways=list_ways(64)),
    Stage(name="all problems", ways=SMALLEST, limits=(None, None)),
)
REHEARSED: Sequence[Stage] = (
    Stage(
        name="the smallest table", ways="greedy,vote-4,weighted-4,best_of_n-4,beam-4", limits=(2, 2)
    ),
    Stage(name="seconds of runs alone", ways="greedy,beam-4", limits=(1, 1), alone=True),
)


async def measure_stages(asked: argparse.Namespace, results: Results) -> None:
    files, reached = [asked.problems, *asked.more], list[Stage]()
    for stage in REHEARSED if asked.rehearse else STAGES:
        reached.append(stage)
        for name in (stage.name, f"{stage.name}, again"):
            minutes = stage.share * (asked.minutes - results.seconds / 60)
            if minutes <= 0:
                results.skip(name, "no time was left")
                break
            async with results.part(name):
                first, further = stage.limits
                try:
                    found = await measure(
                        config=load_config({"pair": asked.pair}),
                        files=files,
                        limits=[first, *(further for _ in asked.more)],
                        ways=parse_ways(stage.ways),
                        target=asked.output / "records.jsonl",
                        minutes=minutes,
                        alone=stage.alone,
                    )
                finally:
                    write_pages(asked.output, reached)
                results.add(name, found)
                results.failed = [each for each in results.failed if each != stage.name]
                if not found["failed"]:
                    break


def write_pages(folder: Path, reached: Sequence[Stage]) -> None:
    """Write a table of each stage's ways: one with no record would empty that of others."""
    if not (file := folder / "records.jsonl").exists():
        return
    found = read_records([file])
    pages = [
        "\n".join((f"# {stage.name}", "", *write_tables(found, parse_ways(stage.ways))))
        for stage in {each.ways: each for each in reached if not each.alone}.values()
    ]
    (folder / "table.md").write_text("\n\n".join(pages) + "\n")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--more", type=Path, nargs="*", default=[], help="further files")
    parser.add_argument("--minutes", type=float, default=8.5, help="runs end by then")
    asked = parse_options(__doc__.splitlines()[0], "real-figures", parser)
    os.environ["FLASHEDGE_MAX_RUNNING"] = MAX_RUNNING
    if asked.rehearse:
        os.environ["FLASHEDGE_HOME"] = str(make_folder(asked.output / "home"))
        os.environ["FLASHEDGE_PORT"] = str(find_free_port())
    results = Results(asked.output / "real_figures.json", asked.pair)
    try:
        asyncio.run(measure_stages(asked, results))
    finally:
        subprocess.run([*CLI, "down"], capture_output=True, check=False)
    report(failed=results.failed, skipped=results.skipped, output=str(asked.output))
    sys.exit(1 if results.failed else 0)


if __name__ == "__main__":
    main()
