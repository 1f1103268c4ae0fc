"""Do other tree searches gain as much? (the paper's Fig. 11)

    python -m scripts.bench.flashtts.variants [--n 16 64] [--lengths smooth|observed]

Beam search, DVTS, dynamic branching, varying granularity (steps of at most 64 tokens for the first
three and 2,048 after them, as in the paper) and REBASE with 1.5B + 1.5B on the simulated 4090, two
AIME-like problems each: the stock loop, suffix scoring, everything but lookahead. The last line is
JSON.
"""

import argparse
from functools import partial
from typing import Any

from scripts.bench.daemon import report
from scripts.bench.flashtts.study import (
    add_lengths_flag,
    average_problems,
    build_cell,
    climb_ladder,
    format_table,
    run_in_parallel,
    save_json,
    save_tables,
)
from scripts.bench.smoke import parse_arguments
from scripts.lab.benchmark.ladder import RUNGS

NAME = "variants"
PAIR = "1.5B+1.5B"
STRATEGIES = ("beam", "dvts", "dynamic_branching", "varying_granularity", "rebase")
LADDER = (RUNGS[0], RUNGS[1], RUNGS[4])
Task = tuple[str, int, int]  # strategy, n, row


def run_problem(lengths: str, task: Task) -> list[dict[str, Any]]:
    strategy, n, row = task
    bench = build_cell(PAIR, "aime", n, strategy=strategy, problems=2, lengths=lengths)
    return climb_ladder(bench, row, LADDER)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--n", type=int, nargs="+", default=[16, 64])
    add_lengths_flag(parser)
    asked = parse_arguments(parser)
    widths = asked.n
    rows = build_cell(PAIR, "aime", 16, problems=2).rows
    tasks = [(strategy, n, row) for n in widths for strategy in STRATEGIES for row in rows]
    found: dict[tuple[str, int], list[list[dict[str, Any]]]] = {}
    for (strategy, n, _), rungs in run_in_parallel(
        f"{NAME}-{asked.lengths}", partial(run_problem, asked.lengths), tasks
    ):
        found.setdefault((strategy, n), []).append(rungs)
    cells = {cell: average_problems(problems) for cell, problems in found.items()}
    lines = [
        (
            *cell,
            f"{rungs[0]['goodput']:.1f}",
            *(f"{r['goodput_gain']:.2f}" for r in rungs[1:]),
            f"{rungs[2]['gain_over_suffix']:.2f}",
            f"{rungs[2]['latency_cut']:.0%}",
            f"{rungs[2]['kept_steps'] / rungs[2]['steps']:.0%}",
            "yes" if rungs[2]["same_trees"] == 1 else "no",
        )
        for cell, rungs in cells.items()
    ]
    head = (
        "search",
        "n",
        "stock, tokens/s",
        "suffix",
        "+P+M+S",
        "+P+M+S over suffix",
        "latency cut",
        "steps drafted ahead",
    )
    text = format_table((*head, "same trees"), lines, "1.5B+1.5B, AIME-like: goodput gain")
    save_tables(NAME, "Other searches on the simulated 4090", [text])
    save_json(
        NAME,
        {
            "simulated": True,
            "cells": [{"search": s, "n": n, "rungs": r} for (s, n), r in cells.items()],
        },
    )
    print(text)
    gains = {f"{s} n={n}": round(r[2]["goodput_gain"], 3) for (s, n), r in cells.items()}
    report(simulated=True, goodput_gain=gains)


if __name__ == "__main__":
    main()
