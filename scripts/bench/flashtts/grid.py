"""What does each optimization gain on a simulated 4090? (the paper's Figs. 12, 13, 15)

    python -m scripts.bench.flashtts.grid [--n 8 16 32 64 128 256 512] [--seeds 8]
        [--overheads low|typical|high] [--lengths smooth|observed]

The paper's three pairs with its memory (40, 90, 90 % of the card) x {AIME-like, AMC-like} x n, beam
search with 4 children: the stock loop, then every optimization on top of those before it. The
tables give goodput (mean tokens of a completed path / mean seconds to its completion, arXiv
2509.00195 §6.1) as a gain over the stock loop, which scores whole paths, and over suffix scoring, a
verifier with a prefix cache. Latency is split into generator and verifier. A cell is the mean of
one run per seed, each of another problem, with 95 % bootstrap intervals. Every tree is compared
with the stock loop's. With eight seeds it takes hours of CPU time, and it resumes where it was
interrupted. The gains depend on the assumed overheads: see `sensitivity`. The last line is JSON.
"""

import argparse
from collections.abc import Mapping, Sequence
from functools import partial
from math import log2
from statistics import mean
from typing import Any

from flashedge.plots import draw_plot
from scripts.bench.daemon import report
from scripts.bench.flashtts.study import (
    PAIRS,
    WIDTHS,
    WORKLOADS,
    add_lengths_flag,
    average_problems,
    build_cell,
    climb_ladder,
    format_gain,
    format_table,
    locate_picture,
    run_in_parallel,
    save_json,
    save_tables,
)
from scripts.bench.smoke import parse_arguments
from scripts.lab.benchmark.devices import OVERHEADS
from scripts.lab.benchmark.ladder import RUNGS

Cell = tuple[str, str, int]  # pair, workload, n
Rows = list[dict[str, float]]
BEST = -2  # index in RUNGS of what is on by default: all but lookahead


def run_seed(
    overheads: str, lengths: str, seeds: int, task: tuple[str, str, int, int]
) -> list[dict[str, Any]]:
    pair, workload, n, seed = task
    bench = build_cell(
        pair, workload, n, problems=seeds, overheads=OVERHEADS[overheads], lengths=lengths
    )
    return climb_ladder(bench, bench.rows[seed % len(bench.rows)], RUNGS, seed)


def simulate_cells(
    widths: Sequence[int], seeds: int, overheads: str, lengths: str
) -> dict[Cell, Rows]:
    cells = [(p, w, n) for n in widths for p in PAIRS for w in WORKLOADS]
    tasks = [(*cell, seed) for cell in cells for seed in range(seeds)]
    work = partial(run_seed, overheads, lengths, seeds)
    found: dict[Cell, list[list[dict[str, Any]]]] = {}
    for task, rungs in run_in_parallel(f"grid-{overheads}-{lengths}-{seeds}", work, tasks):
        found.setdefault(task[:3], []).append(rungs)
    return {cell: average_problems(problems) for cell, problems in found.items()}


# ---------------------------------------------------------------- tables


def summarize(cells: Mapping[Cell, Rows]) -> dict[str, Any]:
    """Summarize all cells: gains and latency cuts of each rung, and those of each engine alone."""

    def list_gains(name: str, of: int) -> list[float]:
        return [rows[of][name] for rows in cells.values()]

    def average_cut(name: str, of: int) -> float:
        return 1 - mean(rows[of][name] / rows[0][name] for rows in cells.values() if rows[0][name])

    return {
        rung.name: {
            "mean_goodput_gain": round(mean(list_gains("goodput_gain", i)), 3),
            "peak_goodput_gain": round(max(list_gains("goodput_gain", i)), 3),
            "least_goodput_gain": round(min(list_gains("goodput_gain", i)), 3),
            "mean_gain_over_suffix": round(mean(list_gains("gain_over_suffix", i)), 3),
            "mean_latency_cut": round(mean(list_gains("latency_cut", i)), 3),
            "least_and_most_latency_cut": [
                round(f(list_gains("latency_cut", i)), 3) for f in (min, max)
            ],
            "generator_latency_cut": round(average_cut("generator_s", i), 3),
            "verifier_latency_cut": round(average_cut("verifier_s", i), 3),
            "same_trees": min(list_gains("same_trees", i)) == 1,
        }
        for i, rung in enumerate(RUNGS)
    }


def build_tables(cells: Mapping[Cell, Rows]) -> list[str]:
    names = [rung.name for rung in RUNGS]
    gains = [
        (
            *cell,
            f"{rows[0]['goodput']:.1f}",
            *(format_gain(row, "goodput_gain") for row in rows[1:]),
        )
        for cell, rows in cells.items()
    ]
    over_suffix = [
        (*cell, *(format_gain(row, "gain_over_suffix") for row in rows[2:]))
        for cell, rows in cells.items()
    ]
    latency = [
        (*cell, *(_format_parts(rows[i]) for i in (0, 1, BEST)), f"{rows[BEST]['latency_cut']:.0%}")
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
        format_table(
            (*head, "stock, tokens/s", *names[1:]),
            gains,
            "Goodput gain over whole-path scoring (Figs. 12, 15)",
        ),
        format_table(
            (*head, *names[2:]), over_suffix, "Goodput gain over a verifier with a prefix cache"
        ),
        format_table(
            (*head, "stock", "suffix", names[BEST], "cut"),
            latency,
            "Seconds to the end = generator + verifier (Fig. 13)",
        ),
        format_table(
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
                "steps drafted ahead",
            ),
            pressure,
            "What the mechanisms did",
        ),
    ]


def _format_parts(row: Mapping[str, float]) -> str:
    return f"{row['latency_s']:.1f} = {row['generator_s']:.1f} + {row['verifier_s']:.1f}"


def draw_plots(cells: Mapping[Cell, Rows], name: str) -> None:
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
            locate_picture(f"{name}-goodput-{workload}"),
            series,
            title=f"Simulated 4090, {workload}-like: goodput over the stock loop",
            x="log2 n",
            y="gain",
            points=True,
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--n", type=int, nargs="+", default=list(WIDTHS))
    parser.add_argument("--seeds", type=int, default=8)
    parser.add_argument("--overheads", choices=list(OVERHEADS), default="typical")
    add_lengths_flag(parser)
    asked = parse_arguments(parser, n=[4], seeds=1)
    name = f"grid_{asked.overheads}"
    cells = simulate_cells(asked.n, asked.seeds, asked.overheads, asked.lengths)
    summary = summarize(cells)
    rows = [{"pair": p, "workload": w, "n": n, "rungs": r} for (p, w, n), r in cells.items()]
    save_json(name, {"simulated": True, **vars(asked), "summary": summary, "cells": rows})
    lines = [(rung, *(f"{v}" for v in figures.values())) for rung, figures in summary.items()]
    over = format_table(("rung", *next(iter(summary.values()))), lines, "Over all cells")
    about = f"Every optimization on the simulated 4090 with {OVERHEADS[asked.overheads]}"
    command = f"grid --seeds {asked.seeds} --overheads {asked.overheads} --lengths {asked.lengths}"
    save_tables(name, about, [over, *build_tables(cells)], command)
    draw_plots(cells, name)
    print(over)
    report(simulated=True, **vars(asked), summary=summary)


if __name__ == "__main__":
    main()
