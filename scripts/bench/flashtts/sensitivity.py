"""How far do the simulated gains depend on the overheads that are assumed?

    python -m scripts.bench.flashtts.sensitivity [--quick]
        [--n 8 64 256] [--step-ms 1 3 9] [--sequence-us 0 40 80 240] [--seeds 8]

What an engine step takes beyond the roofline is known for no card. So this prints the goodput gain
of every optimization but lookahead on a grid of seconds a step x seconds a sequence, for the
paper's three pairs and AIME-like problems: over whole-path scoring (the stock loop), and over a
verifier with a prefix cache (suffix scoring alone). Each cell is the mean of one run per seed, each
of another problem, with its 95 % bootstrap interval. It resumes where it was interrupted. `--quick`
is a smoke run of a minute. The last line is JSON.
"""

import argparse
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from scripts.bench import smoke
from scripts.bench.daemon import report
from scripts.bench.flashtts.study import (
    PAIRS,
    add_lengths_flag,
    average_problems,
    build_cell,
    climb_ladder,
    format_gain,
    format_table,
    run_in_parallel,
    save_json,
    save_tables,
)
from scripts.lab.benchmark.devices import Overheads
from scripts.lab.benchmark.ladder import BEST, RUNGS, SUFFIX

NAME = "sensitivity"
WORKLOAD = "aime"
LADDER = (RUNGS[0], SUFFIX, BEST)
COLUMNS = {
    "goodput_gain": "over whole-path scoring",
    "gain_over_suffix": "over a verifier with a prefix cache",
}
Cell = tuple[str, int, float, float]  # pair, n, ms a step, us a sequence
Task = tuple[str, int, float, float, int]  # cell, seed


def run_seed(lengths: str, seeds: int, task: Task) -> list[dict[str, Any]]:
    pair, n, step_ms, sequence_us, seed = task
    overheads = Overheads(step_s=step_ms / 1e3, sequence_s=sequence_us / 1e6)
    bench = build_cell(pair, WORKLOAD, n, problems=seeds, overheads=overheads, lengths=lengths)
    return climb_ladder(bench, bench.rows[seed % len(bench.rows)], LADDER, seed)


def list_tasks(asked: argparse.Namespace) -> list[Task]:
    """List the tasks, small cells first."""
    return [
        (pair, n, step_ms, sequence_us, seed)
        for n in sorted(asked.n)
        for pair in asked.pairs
        for step_ms in asked.step_ms
        for sequence_us in asked.sequence_us
        for seed in range(asked.seeds)
    ]


def build_table(cells: Mapping[Cell, Mapping[str, float]], name: str) -> str:
    """Build the table of one gain: a row for each pair, n and overhead of a step."""
    sequences = sorted({cell[3] for cell in cells})
    keys = sorted({cell[:3] for cell in cells})
    rows = [
        (*key, *(format_gain(cells[*key, sequence_us], name) for sequence_us in sequences))
        for key in keys
    ]
    head = ("pair", "n", "ms a step", *(f"{us:g} us a sequence" for us in sequences))
    return format_table(head, rows, f"Goodput gain of +P+M+S {COLUMNS[name]}")


def parse_flags(words: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--pairs", nargs="+", choices=list(PAIRS), default=list(PAIRS))
    parser.add_argument("--n", type=int, nargs="+", default=[8, 64, 256])
    parser.add_argument("--step-ms", type=float, nargs="+", default=[1, 3, 9])
    parser.add_argument("--sequence-us", type=float, nargs="+", default=[0, 40, 80, 240])
    parser.add_argument("--seeds", type=int, default=8)
    parser.add_argument("--quick", action="store_true", help="n = 8, four overheads, two seeds")
    add_lengths_flag(parser)
    asked = smoke.parse_arguments(
        parser,
        words,
        pairs=list(PAIRS)[:1],
        n=[8],
        step_ms=[1],
        sequence_us=[40],
        quick=False,
        seeds=1,
    )
    if asked.quick:
        asked.n, asked.step_ms, asked.sequence_us, asked.seeds = [8], [1, 9], [0, 240], 2
    return asked


def main() -> None:
    asked = parse_flags()
    found: dict[Cell, list[list[dict[str, Any]]]] = {}
    work = partial(run_seed, asked.lengths, asked.seeds)
    study = f"{NAME}-{asked.lengths}-{asked.seeds}"
    for task, rungs in run_in_parallel(study, work, list_tasks(asked)):
        found.setdefault(task[:4], []).append(rungs)
    averages = {cell: average_problems(each) for cell, each in found.items()}
    best = {cell: rungs[-1] for cell, rungs in averages.items()}
    tables = [build_table(best, name) for name in COLUMNS]
    save_tables(NAME, "Gains by the assumed overheads", tables)
    names = ("pair", "n", "step_ms", "sequence_us")
    rows: list[dict[str, Any]] = [
        {**dict(zip(names, cell, strict=True)), **row} for cell, row in best.items()
    ]
    save_json(NAME, {"simulated": True, **vars(asked), "cells": rows})
    print("\n\n".join(tables))
    report(
        simulated=True,
        **vars(asked),
        same_trees=all(row["same_trees"] == 1 for row in rows),
        cells=[
            {
                **{name: row[name] for name in names},
                **{
                    gain: [round(row[f"{gain}{end}"], 3) for end in ("", "_low", "_high")]
                    for gain in COLUMNS
                },
            }
            for row in rows
        ],
    )


if __name__ == "__main__":
    main()
