"""What does each optimization bring on a simulated 4090? (the paper's Figs. 12, 13, 15)

    python -m scripts.bench.flashtts.grid [--n 8 16 32 64 128 256 512] [--sheet]

The paper's three pairs with its memory (40, 90, 90 % of the card) x {AIME-like, AMC-like} x n, beam
search with 4 children: the stock loop and every optimization on top of those before. Told are
goodput (mean tokens of a completed path / mean seconds to its completion, arXiv 2509.00195 §6.1) as
a gain over the stock loop, latency split into generator and verifier, and how much of it is cut.
Problems a cell: 2 up to n = 64, 1 beyond. Every tree is compared with the stock loop's. Ten
minutes of CPU time, to be taken up where it was cut off. `--sheet`: with the data sheet alone (2 ms
a step, nothing a sequence) instead of the overheads fitted to public points: what the gains hang
on. The last line is JSON.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import log2
from statistics import mean
from typing import Any

from flashedge.benchmark.ladder import RUNGS
from flashedge.benchmark.simulate import Bench
from flashedge.plots import draw_plot
from scripts.bench.daemon import report
from scripts.bench.flashtts.study import (
    PAIRS,
    WIDTHS,
    WORKLOADS,
    averaged,
    bench_of,
    climbed,
    in_parallel,
    keep,
    keep_tables,
    picture,
    table,
)

Cell = tuple[str, str, int]  # pair, workload, n
Rows = list[dict[str, float]]
SHEET = {"overhead_s": 0.002, "sequence_s": 0.0}
BEST = -2  # of RUNGS: what the product does by default, lookahead left out


def problem(task: tuple[str, str, int, int, bool]) -> list[dict[str, Any]]:
    pair, workload, n, row, sheet = task
    return climbed(bench(pair, workload, n, sheet), row, RUNGS)


def bench(pair: str, workload: str, n: int, sheet: bool) -> Bench:
    found = bench_of(pair, workload, n)
    if not sheet:
        return found
    device = replace(found.setup.device, **SHEET)
    return replace(found, setup=replace(found.setup, device=device))


def simulated(widths: Sequence[int], sheet: bool) -> dict[Cell, Rows]:
    cells = [(p, w, n) for n in widths for p in PAIRS for w in WORKLOADS]
    tasks = [(*cell, row, sheet) for cell in cells for row in bench(*cell, sheet).rows]
    found: dict[Cell, list[list[dict[str, Any]]]] = {}
    for task, rungs in in_parallel("grid_sheet" if sheet else "grid", problem, tasks):
        found.setdefault(task[:3], []).append(rungs)
    return {cell: averaged(problems) for cell, problems in found.items()}


# ---------------------------------------------------------------- telling


def summary(cells: Mapping[Cell, Rows]) -> dict[str, Any]:
    """Over all cells: gains of each rung, latency cuts, of generator and verifier alone."""

    def over(name: str, of: int) -> list[float]:
        return [rows[of][name] for rows in cells.values()]

    def cut(name: str, of: int) -> float:
        return 1 - mean(rows[of][name] / rows[0][name] for rows in cells.values() if rows[0][name])

    return {
        rung.name: {
            "mean_goodput_gain": round(mean(over("goodput_gain", i)), 3),
            "peak_goodput_gain": round(max(over("goodput_gain", i)), 3),
            "least_goodput_gain": round(min(over("goodput_gain", i)), 3),
            "mean_latency_cut": round(mean(over("latency_cut", i)), 3),
            "least_and_most_latency_cut": [round(f(over("latency_cut", i)), 3) for f in (min, max)],
            "generator_latency_cut": round(cut("generator_s", i), 3),
            "verifier_latency_cut": round(cut("verifier_s", i), 3),
            "same_trees": min(over("same_trees", i)) == 1,
        }
        for i, rung in enumerate(RUNGS)
    }


def tables(cells: Mapping[Cell, Rows]) -> list[str]:
    names = [rung.name for rung in RUNGS]
    gains = [
        (*cell, f"{rows[0]['goodput']:.1f}", *(f"{r['goodput_gain']:.2f}" for r in rows[1:]))
        for cell, rows in cells.items()
    ]
    latency = [
        (
            *cell,
            *(_parts(rows[i]) for i in (0, 1, BEST)),
            f"{rows[BEST]['latency_cut']:.0%}",
        )
        for cell, rows in cells.items()
    ]
    pressure = [
        (
            *cell,
            *(f"{rows[i]['preemptions']:.0f}" for i in (0, 3, 4)),
            *(f"{rows[i]['verifier_reuse']:.0%}" for i in (1, 2, 3)),
            f"{rows[3]['split_moves']:.1f}",
            f"{rows[3]['offloads']:.1f}",
            f"{rows[BEST]['kept_steps'] / rows[BEST]['steps']:.0%}",
        )
        for cell, rows in cells.items()
    ]
    head = ("pair", "workload", "n")
    return [
        table((*head, "stock, tokens/s", *names[1:]), gains, "Goodput gain (Figs. 12, 15)"),
        table(
            (*head, "stock", "suffix", names[BEST], "cut"),
            latency,
            "Seconds to the end = generator + verifier (Fig. 13)",
        ),
        table(
            (
                *head,
                "preempted: stock",
                "+P+M",
                "+P+M+S",
                "verifier re-use: suffix",
                "+P",
                "+P+M",
                "split moves",
                "offloads",
                "steps begun ahead",
            ),
            pressure,
            "What the mechanisms did",
        ),
    ]


def _parts(row: Mapping[str, float]) -> str:
    return f"{row['latency_s']:.1f} = {row['generator_s']:.1f} + {row['verifier_s']:.1f}"


def plots(cells: Mapping[Cell, Rows], name: str) -> None:
    for workload in WORKLOADS:
        series = {
            f"{pair}, {RUNGS[i].name}": [
                (log2(n), rows[i]["goodput_gain"])
                for (p, w, n), rows in cells.items()
                if (p, w) == (pair, workload)
            ]
            for pair in PAIRS
            for i in (1, BEST)
        }
        draw_plot(
            picture(f"{name}-goodput-{workload}"),
            series,
            title=f"Simulated 4090, {workload}-like: goodput over the stock loop",
            x="log2 n",
            y="gain",
            points=True,
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--n", type=int, nargs="+", default=list(WIDTHS))
    parser.add_argument("--sheet", action="store_true")
    asked = parser.parse_args()
    name = "grid_sheet" if asked.sheet else "grid"
    cells = simulated(asked.n, asked.sheet)
    told = summary(cells)
    rows = [{"pair": p, "workload": w, "n": n, "rungs": r} for (p, w, n), r in cells.items()]
    keep(name, {"simulated": True, "summary": told, "cells": rows})
    lines = [(rung, *(f"{v}" for v in figures.values())) for rung, figures in told.items()]
    over = table(("rung", *next(iter(told.values()))), lines, "Over all cells")
    command = "grid --sheet" if asked.sheet else "grid"
    keep_tables(name, "Every optimization on the simulated 4090", [over, *tables(cells)], command)
    plots(cells, name)
    print(over)
    report(simulated=True, n=asked.n, sheet=asked.sheet, summary=told)


if __name__ == "__main__":
    main()
