"""What are order and split worth when memory is short? (the paper's Fig. 17, right)

    python -m scripts.bench.flashtts.memory_sweep [--pair 1.5B+1.5B] [--n 128 512]

KV memory of both engines together from 1.5 to 14 GB, as in the paper, and below it to where one
path still fits: step lengths of MATH need less KV than AIME's. Beam search on the simulated 4090,
one AIME-like problem a point. Gains are over the stock loop and over suffix scoring, which is what
the paper's baseline may already have had. The last line is JSON.
"""

from __future__ import annotations

import argparse
from functools import partial
from typing import Any

from flashedge.benchmark.ladder import RUNGS
from flashedge.plots import draw_plot
from scripts.bench.daemon import report
from scripts.bench.flashtts.study import (
    PAIRS,
    averaged,
    bench_of,
    climbed,
    in_parallel,
    keep,
    keep_tables,
    picture,
    table,
)

NAME = "memory_sweep"
BYTES = (0.3e9, 0.5e9, 0.75e9, 1.0e9, 1.5e9, 3e9, 6e9, 14e9)
LADDER = RUNGS[:4]
Cells = dict[float, list[dict[str, Any]]]  # rungs by bytes
TOKENS = 4096  # of the longest path; each engine holds one


def problem(pair: str, task: tuple[int, float, int]) -> list[dict[str, Any]]:
    n, kv_bytes, row = task
    return climbed(bench_of(pair, "aime", n, problems=1, kv_bytes=int(kv_bytes)), row, LADDER)


def budgets(pair: str, n: int) -> list[float]:
    """Those that half of still holds a path."""
    setup = bench_of(pair, "aime", n).setup
    least = 2 * TOKENS * max(s.kv_bytes_per_token for s in (setup.generator, setup.verifier))
    return [kv_bytes for kv_bytes in BYTES if kv_bytes >= least]


def table_of(pair: str, n: int, cells: Cells) -> str:
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
            *(f"{r['goodput'] / rows[1]['goodput']:.3f}" for r in rows[2:]),
            *(f"{rows[i]['preemptions']:.0f}" for i in (1, 3)),
            *(f"{rows[i]['verifier_reuse']:.0%}" for i in (1, 2, 3)),
            f"{rows[3]['offloads']:.0f}",
        )
        for kv, rows in cells.items()
    ]
    return table(head, lines, f"{pair}, AIME-like, n = {n}: goodput gain over the stock loop")


def gains_of(cells: Cells) -> dict[str, list[tuple[float, float]]]:
    """(GB, goodput over suffix scoring alone) by rung."""
    return {
        rung.name: [
            (kv / 1e9, rows[i]["goodput"] / rows[1]["goodput"]) for kv, rows in cells.items()
        ]
        for i, rung in enumerate(LADDER)
        if i > 1
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--pair", choices=list(PAIRS), default="1.5B+1.5B")
    parser.add_argument("--n", type=int, nargs="+", default=[128, 512])
    asked = parser.parse_args()
    rows = bench_of(asked.pair, "aime", asked.n[0], problems=1).rows
    tasks = [(n, kv, row) for n in asked.n for kv in budgets(asked.pair, n) for row in rows]
    found: dict[int, dict[float, list[list[dict[str, Any]]]]] = {n: {} for n in asked.n}
    for (n, kv, _), rungs in in_parallel(NAME, partial(problem, asked.pair), tasks):
        found[n].setdefault(kv, []).append(rungs)
    cells = {n: {kv: averaged(each) for kv, each in by_kv.items()} for n, by_kv in found.items()}
    tables = [table_of(asked.pair, n, cells[n]) for n in asked.n]
    keep_tables(NAME, "Goodput against KV memory", tables)
    kept = [{"n": n, "bytes": kv, "rungs": r} for n in asked.n for kv, r in cells[n].items()]
    keep(NAME, {"simulated": True, "pair": asked.pair, "cells": kept})
    gains = {n: gains_of(cells[n]) for n in asked.n}
    draw_plot(
        picture(NAME),
        {f"n = {n}, {rung}": line for n in asked.n for rung, line in gains[n].items()},
        title=f"Simulated 4090, {asked.pair}: goodput over suffix scoring",
        x="KV memory of both engines, GB",
        y="gain",
        points=True,
    )
    print("\n\n".join(tables))
    told = {n: {rung: dict(line) for rung, line in gains[n].items()} for n in asked.n}
    report(simulated=True, pair=asked.pair, gain_over_suffix_scoring=told)


if __name__ == "__main__":
    main()
