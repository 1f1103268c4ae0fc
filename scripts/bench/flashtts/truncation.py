"""What does the paper's truncation ratio R gain? (its Fig. 16, right)

    python -m scripts.bench.flashtts.truncation [--n 16 64]

In the paper a duplicate begins with a part of its sibling's draft, whose length is drawn around R.
Here it begins with its own draft or with nothing. So a run with R builds *another* tree, its gain
compares different work, and the table says how many trees are the same. 1.5B + 1.5B on the
simulated 4090, two AIME-like problems, with the batch kept as large as it was (the paper's rule).
Gains are over the same run without speculation. The last line is JSON.
"""

from __future__ import annotations

import argparse
from dataclasses import replace
from typing import Any

from flashedge.benchmark.ladder import RUNGS
from flashedge.benchmark.simulate import summarize_runs
from flashedge.benchmark.virtual_run import simulate_run
from scripts.bench.daemon import report
from scripts.bench.flashtts.study import (
    average_problems,
    build_cell,
    format_table,
    run_in_parallel,
    save_json,
    save_tables,
)

NAME = "truncation"
PAIR = "1.5B+1.5B"
RATIOS = (None, 0.0, 0.25, 0.5, 0.85, 1.0)
Task = tuple[int, bool, int]  # n, with the data sheet alone, row


def run_problem(task: Task) -> list[dict[str, Any]]:
    n, sheet, row = task
    bench = build_cell(PAIR, "aime", n, problems=2)
    device = bench.setup.device
    if sheet:
        device = replace(device, overhead_s=0.002, sequence_s=0.0)
    setup = replace(bench.setup, device=device, flat_batch=0)
    spec = bench.spec(row)
    off = simulate_run(RUNGS[3], setup, bench.trace, row, spec)
    runs = [
        simulate_run(RUNGS[4], replace(setup, truncation=ratio), bench.trace, row, spec)
        for ratio in RATIOS
    ]
    return [summarize_runs([run], [off]) for run in runs]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--n", type=int, nargs="+", default=[16, 64])
    widths = parser.parse_args().n
    rows = build_cell(PAIR, "aime", 16, problems=2).rows
    tasks = [(n, sheet, row) for n in widths for sheet in (False, True) for row in rows]
    found: dict[tuple[int, bool], list[list[dict[str, Any]]]] = {}
    for (n, sheet, _), ratios in run_in_parallel(NAME, run_problem, tasks):
        found.setdefault((n, sheet), []).append(ratios)
    cells = {cell: average_problems(problems) for cell, problems in found.items()}
    lines = [
        (
            n,
            "data sheet" if sheet else "calibrated",
            "exact" if ratio is None else ratio,
            f"{figures['goodput_gain']:.3f}",
            f"{figures['kept_steps'] / figures['steps']:.0%}",
            f"{figures['same_trees']:.0%}",
        )
        for (n, sheet), ratios in cells.items()
        for ratio, figures in zip(RATIOS, ratios, strict=True)
    ]
    head = ("n", "device", "R", "goodput gain of S", "steps drafted ahead", "same trees")
    made = format_table(head, lines, "1.5B+1.5B, AIME-like")
    save_tables(NAME, "The truncation ratio R", [made])
    save_json(
        NAME, {"simulated": True, "rows": [dict(zip(head, line, strict=True)) for line in lines]}
    )
    print(made)
    report(simulated=True, rows=[list(line) for line in lines])


if __name__ == "__main__":
    main()
