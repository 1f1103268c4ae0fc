"""What are order and split worth when memory is short? (the paper's Fig. 17, right)

    python -m scripts.bench.flashtts.memory_sweep [--pair 1.5B+1.5B] [--n 128 512]
        [--lengths smooth|observed]

The KV memory of both engines together goes from 1.5 to 14 GB, as in the paper, and below that to
where one path still fits: step lengths of MATH need less KV than AIME's. Each point is a beam
search of one AIME-like problem on the simulated 4090. Gains are given over the stock loop and over
suffix scoring, which the paper's baseline may already have had. The last line is JSON.
"""

import argparse
from functools import partial
from typing import Any

from flashedge.plots import draw_plot
from scripts.bench.daemon import report
from scripts.bench.flashtts.study import (
    PAIRS,
    add_lengths_flag,
    average_problems,
    build_cell,
    climb_ladder,
    format_table,
    locate_picture,
    run_in_parallel,
    save_json,
    save_tables,
)
from scripts.bench.smoke import parse_arguments
from scripts.lab.benchmark.ladder import RUNGS

NAME = "memory_sweep"
BYTES = (0.3e9, 0.5e9, 0.75e9, 1.0e9, 1.5e9, 3e9, 6e9, 14e9)
LADDER = RUNGS[:4]
Cells = dict[float, list[dict[str, Any]]]
"""Bytes of KV memory -> figures of each rung."""
TOKENS = 4096
"""Tokens of the longest path. Each engine must hold one."""


def run_problem(pair: str, lengths: str, task: tuple[int, float, int]) -> list[dict[str, Any]]:
    n, kv_bytes, row = task
    bench = build_cell(pair, "aime", n, problems=1, kv_bytes=int(kv_bytes), lengths=lengths)
    return climb_ladder(bench, row, LADDER)


def list_budgets(pair: str, n: int) -> list[float]:
    """The memory sizes of which half still holds a path."""
    setup = build_cell(pair, "aime", n).setup
    least = 2 * TOKENS * max(s.kv_bytes_per_token for s in (setup.generator, setup.verifier))
    return [kv_bytes for kv_bytes in BYTES if kv_bytes >= least]


def build_table(pair: str, n: int, cells: Cells) -> str:
    names = [rung.name for rung in LADDER]
    head = (
        "KV, GB",
        *names[1:],
        *(f"{name} over suffix" for name in names[2:]),
        "preempted: suffix",
        "+P+M",
        "re-use: suffix",
        "+P",
        "+P+M",
        "offloads",
    )
    lines = [
        (
            f"{kv / 1e9:g}",
            *(f"{r['goodput_gain']:.2f}" for r in rows[1:]),
            *(f"{r['gain_over_suffix']:.3f}" for r in rows[2:]),
            *(f"{rows[i]['preemptions']:.0f}" for i in (1, 3)),
            *(f"{rows[i]['verifier_reuse']:.0%}" for i in (1, 2, 3)),
            f"{rows[3]['offloads']:.0f}",
        )
        for kv, rows in cells.items()
    ]
    return format_table(
        head, lines, f"{pair}, AIME-like, n = {n}: goodput gain over the stock loop"
    )


def compute_gains(cells: Cells) -> dict[str, list[tuple[float, float]]]:
    """Return (GB, goodput over suffix scoring alone) by rung."""
    return {
        rung.name: [(kv / 1e9, rows[i]["gain_over_suffix"]) for kv, rows in cells.items()]
        for i, rung in enumerate(LADDER)
        if i > 1
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--pair", choices=list(PAIRS), default="1.5B+1.5B")
    parser.add_argument("--n", type=int, nargs="+", default=[128, 512])
    add_lengths_flag(parser)
    args = parse_arguments(parser)
    rows = build_cell(args.pair, "aime", args.n[0], problems=1).rows
    tasks = [(n, kv, row) for n in args.n for kv in list_budgets(args.pair, n) for row in rows]
    study, work = f"{NAME}-{args.lengths}", partial(run_problem, args.pair, args.lengths)
    found: dict[int, dict[float, list[list[dict[str, Any]]]]] = {n: {} for n in args.n}
    for (n, kv, _), rungs in run_in_parallel(study, work, tasks):
        found[n].setdefault(kv, []).append(rungs)
    cells = {
        n: {kv: average_problems(each) for kv, each in by_kv.items()} for n, by_kv in found.items()
    }
    tables = [build_table(args.pair, n, cells[n]) for n in args.n]
    save_tables(NAME, "Goodput against KV memory", tables)
    kept = [{"n": n, "bytes": kv, "rungs": r} for n in args.n for kv, r in cells[n].items()]
    save_json(NAME, {"simulated": True, "pair": args.pair, "cells": kept})
    gains = {n: compute_gains(cells[n]) for n in args.n}
    draw_plot(
        locate_picture(NAME),
        {f"n = {n}, {rung}": line for n in args.n for rung, line in gains[n].items()},
        title=f"Simulated 4090, {args.pair}: goodput over suffix scoring",
        x="KV memory of both engines, GB",
        y="gain",
        points=True,
    )
    print("\n\n".join(tables))
    gain_by_n = {n: {rung: dict(line) for rung, line in gains[n].items()} for n in args.n}
    report(simulated=True, pair=args.pair, gain_over_suffix_scoring=gain_by_n)


if __name__ == "__main__":
    main()
