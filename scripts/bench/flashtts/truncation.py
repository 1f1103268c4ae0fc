"""What does the paper's truncation ratio R gain? (its Fig. 16, right)

    python -m scripts.bench.flashtts.truncation [--n 16 64] [--lengths smooth|observed]

In the paper a duplicate begins with a part of its sibling's draft, whose length is drawn around R.
Here it begins with its own draft or with nothing. So a run with R builds *another* tree, its gain
compares different work, and the table says how many trees are the same. 1.5B + 1.5B on the
simulated 4090, two AIME-like problems, with the batch kept as large as it was (the paper's rule).
Gains are over the same run without speculation. The last line is JSON.
"""

from __future__ import annotations

import argparse
from dataclasses import replace
from functools import partial
from typing import Any

from scripts.bench.daemon import report
from scripts.bench.flashtts.study import (
    add_lengths_flag,
    average_problems,
    build_cell,
    format_table,
    run_in_parallel,
    save_json,
    save_tables,
)
from scripts.lab.benchmark.devices import OVERHEADS
from scripts.lab.benchmark.ladder import RUNGS
from scripts.lab.benchmark.simulate import summarize_runs
from scripts.lab.benchmark.virtual_run import simulate_run

NAME = "truncation"
PAIR = "1.5B+1.5B"
RATIOS = (None, 0.0, 0.25, 0.5, 0.85, 1.0)
Task = tuple[int, str, int]  # n, overheads, row


def run_problem(lengths: str, task: Task) -> list[dict[str, Any]]:
    n, overheads, row = task
    bench = build_cell(PAIR, "aime", n, problems=2, overheads=OVERHEADS[overheads], lengths=lengths)
    setup = replace(bench.setup, flat_batch=0)
    spec = bench.spec(row)
    off = simulate_run(RUNGS[3], setup, bench.trace, spec)
    runs = [
        simulate_run(RUNGS[4], replace(setup, truncation=ratio), bench.trace, spec)
        for ratio in RATIOS
    ]
    return [summarize_runs([run], [off]) for run in runs]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--n", type=int, nargs="+", default=[16, 64])
    add_lengths_flag(parser)
    asked = parser.parse_args()
    widths = asked.n
    rows = build_cell(PAIR, "aime", 16, problems=2).rows
    tasks = [(n, name, row) for n in widths for name in OVERHEADS for row in rows]
    found: dict[tuple[int, str], list[list[dict[str, Any]]]] = {}
    work = partial(run_problem, asked.lengths)
    for (n, name, _), ratios in run_in_parallel(f"{NAME}-{asked.lengths}", work, tasks):
        found.setdefault((n, name), []).append(ratios)
    cells = {cell: average_problems(problems) for cell, problems in found.items()}
    lines = [
        (
            n,
            str(OVERHEADS[name]),
            "exact" if ratio is None else ratio,
            f"{figures['goodput_gain']:.3f}",
            f"{figures['kept_steps'] / figures['steps']:.0%}",
            f"{figures['same_trees']:.0%}",
        )
        for (n, name), ratios in cells.items()
        for ratio, figures in zip(RATIOS, ratios, strict=True)
    ]
    head = ("n", "overheads", "R", "goodput gain of S", "steps drafted ahead", "same trees")
    made = format_table(head, lines, "1.5B+1.5B, AIME-like")
    save_tables(NAME, "The truncation ratio R", [made])
    save_json(
        NAME, {"simulated": True, "rows": [dict(zip(head, line, strict=True)) for line in lines]}
    )
    print(made)
    report(simulated=True, rows=[list(line) for line in lines])


if __name__ == "__main__":
    main()
