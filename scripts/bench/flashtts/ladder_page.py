"""Writes the tables and the plot of a ladder on real engines to runs/flashtts/.

    python -m scripts.bench.flashtts.ladder_page [runs/ladder] [--name ladder] [--on "two cores"]

Reads runs.jsonl of `ladder_real` or of `flashedge bench flashtts`. A problem counts if it was run
on every rung of its KV size and n. Gains are ratios on the same problem: the median over the
problems, with its 95 % bootstrap interval. Sizes and widths that the page has and the folder lacks
stay as they are, with the device that they were measured on. The last line is JSON.
"""

import argparse
import asyncio
import json
from collections import defaultdict
from collections.abc import Mapping, Sequence
from itertools import chain
from math import log2
from pathlib import Path
from typing import Any

from flashedge.files.problems import read_problems
from flashedge.plots import draw_plot
from scripts.bench.daemon import report
from scripts.bench.flashtts.ladder_real import DID, PROBLEMS
from scripts.bench.flashtts.study import (
    OUTPUT,
    format_table,
    locate_picture,
    save_json,
    save_tables,
)
from scripts.bench.smoke import SMALL, parse_arguments
from scripts.lab.benchmark.ladder import ALL, ONCE, RUNGS, STOCK_ENGINE
from scripts.lab.benchmark.live import LiveRun, compare_runs, grade_answers
from scripts.lab.statistics import mean

NAMES = [rung.name for rung in ALL]
STOCK, SUFFIX = NAMES[:2]
BEST = RUNGS[-2].name  # the paper's parts that are on by default: lookahead is not
BEFORE = {**dict(zip(NAMES[1:], NAMES, strict=False)), ONCE.name: BEST}  # what a rung adds to
Cell = tuple[str, int]  # KV, n
Runs = dict[Cell, list[tuple[LiveRun, Mapping[str, int]]]]  # with what the mechanisms did
Rows = dict[Cell, dict[str, dict[str, Any]]]  # one a rung


def read_runs(folder: Path) -> Runs:
    """Read the runs of problems that were run on every rung, by cell. Raises SystemExit without a
    file."""
    file = folder / "runs.jsonl"
    if not file.exists():
        raise SystemExit(f"there is no {file}: ladder_real, or flashedge bench flashtts, makes it")
    found: dict[tuple[str, int, int], list[tuple[LiveRun, Mapping[str, int]]]] = defaultdict(list)
    for line in file.read_text(encoding="utf-8").splitlines()[1:]:
        fields = json.loads(line)
        did = {name: fields.pop(name, 0) for name in DID}
        run = LiveRun.from_json(fields)
        found[run.kv, run.n, run.problem].append((run, did))
    rungs: dict[Cell, set[str]] = defaultdict(set)
    for (kv, n, _), runs in found.items():
        rungs[kv, n] |= {run.rung for run, _ in runs}
    cells: Runs = defaultdict(list)
    for (kv, n, _), runs in found.items():
        if {run.rung for run, _ in runs} == rungs[kv, n]:
            cells[kv, n] += runs
    return cells


def read_page(name: str) -> Rows:
    """Read the rows that the page has already."""
    file, cells = OUTPUT / f"{name}.json", defaultdict[Cell, dict[str, Any]](dict)
    for row in json.loads(file.read_text(encoding="utf-8"))["rungs"] if file.exists() else ():
        cells[row["kv"], row["n"]][row["rung"]] = row
    return cells


def build_rows(cells: Runs, right: Mapping[Any, bool], on: str) -> Rows:
    """Build a row for each rung of each cell, in the ladder's order.

    A row compares the rung with the stock loop (whole-path scoring), as `over_suffix` with suffix
    scoring alone (a verifier with a prefix cache), and as `step` with the rung that it adds to.
    """
    found = {}
    for cell, runs in cells.items():
        rows = {row["rung"]: row for row in compare_runs([run for run, _ in runs], right)}
        found[cell] = by_rung = {name: rows[name] for name in NAMES if name in rows}
        for name, row in by_rung.items():
            did = [did for run, did in runs if run.rung == name]
            row.update({key: mean([one[key] for one in did]) for key in DID}, on=on)
            before = BEFORE.get(name)
            row["step"] = _compare_two(runs, before, name, "speedup") if before in by_rung else None
            row["over_suffix"] = (
                _compare_two(runs, SUFFIX, name, "goodput_gain")
                if SUFFIX in by_rung and name not in (STOCK, SUFFIX)
                else None
            )
    return found


def _compare_two(
    runs: list[tuple[LiveRun, Mapping[str, int]]], first: str, name: str, figure: str
) -> Any:
    """The figure of the rung `name` beside the rung `first`."""
    two = [run for run, _ in runs if run.rung in (first, name)]
    return next(r[figure] for r in compare_runs(two, {}, first=first) if r["rung"] == name)


# ---------------------------------------------------------------- telling


def format_gain(found: Mapping[str, float] | None) -> str:
    if found is None:
        return "-"
    return f"{found['median']:.2f} ({found['median_low']:.2f}–{found['median_high']:.2f})"


def build_tables(cells: Rows) -> list[str]:
    head = ("KV of both", "n", "on", "problems")

    def lines(cell: Cell, rows: Mapping[str, Any], *cells: object) -> tuple[object, ...]:
        return (*cell, rows[STOCK]["on"], rows[STOCK]["problems"], *cells)

    def of(rows: Mapping[str, Any], key: str, names: Sequence[str] = NAMES[1:]) -> list[str]:
        return [format_gain(rows[name].get(key) if name in rows else None) for name in names]

    items = list(cells.items())
    return [
        format_table(
            (*head, "stock, tokens/s", *NAMES[1:]),
            [lines(c, r, f"{r[STOCK]['goodput']:.0f}", *of(r, "goodput_gain")) for c, r in items],
            "Goodput over whole-path scoring (the stock loop)",
        ),
        format_table(
            (*head, *NAMES[2:]),
            [lines(c, r, *of(r, "over_suffix", NAMES[2:])) for c, r in items],
            "Goodput over a verifier with a prefix cache (suffix scoring alone)",
        ),
        format_table(
            (*head, *NAMES[1:]),
            [lines(c, r, *of(r, "speedup")) for c, r in items],
            "Stock loop's seconds over a rung's",
        ),
        format_table(
            (*head, *NAMES[1:]),
            [lines(c, r, *of(r, "step")) for c, r in items],
            "Each optimization alone: seconds of the rung before over the rung's "
            f"(of {BEST} over {ONCE.name}'s)",
        ),
        format_table(
            (*head, *NAMES),
            [lines(c, r, *(_format_parts(r.get(name)) for name in NAMES)) for c, r in items],
            "Median seconds: all, generator + verifier",
        ),
        format_table(
            (*head, *NAMES[1:]),
            [lines(c, r, *of(r, "verifier_share")) for c, r in items],
            "Verifier's seconds, of the stock loop's",
        ),
        format_table(
            (*head, "right", "same trees", "re-use: stock", *_name_mechanisms()),
            [lines(c, r, *_format_mechanisms(r)) for c, r in items],
            f"What happened (on {BEST}, means of a run, where not said otherwise)",
        ),
    ]


def _format_parts(row: Mapping[str, Any] | None) -> str:
    if row is None:
        return "-"
    return f"{row['latency_s']:.2f}: {row['generator_s']:.2f} + {row['verifier_s']:.2f}"


def _name_mechanisms() -> tuple[str, ...]:
    return (SUFFIX, BEST, "preempted: stock", BEST, "split moves", "offloads", "drafted ahead")


def _format_mechanisms(rows: Mapping[str, Any]) -> list[str]:
    stock, suffix, best = rows[STOCK], rows[SUFFIX], rows[BEST]
    return [
        "-" if stock["right"] is None else f"{stock['right']:.0%}",
        f"{min(row['same_trees'] for row in rows.values()):.0%}",
        *(f"{row['reuse']:.0%}" for row in (stock, suffix, best)),
        *(f"{row['preemptions']:.1f}" for row in (stock, best)),
        f"{best['split_moves']:.1f}",
        f"{best['offloads']:.1f}",
        f"{best['kept_steps']:.0%}",
    ]


def draw_ladder_plot(cells: Rows, name: str) -> None:
    series: dict[str, list[tuple[float, float]]] = defaultdict(list)
    for (kv, n), rows in cells.items():
        for rung, row in rows.items():
            if rung in (SUFFIX, BEST, ONCE.name):
                series[f"{kv}, {rung}"].append((log2(n), row["goodput_gain"]["median"]))
    draw_plot(
        locate_picture(name),
        series,
        title="Goodput over the stock loop",
        x="log2 n",
        y="gain",
        points=True,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path, nargs="?", default=Path("runs/ladder"))
    parser.add_argument("--name", default="ladder", help="of the page in runs/flashtts/")
    parser.add_argument("--problems", type=Path, default=PROBLEMS, help="that were solved")
    parser.add_argument("--on", default="two cores", help="the device")
    asked = parse_arguments(parser, folder=SMALL / "ladder_runs")
    found = read_runs(asked.folder)
    if not found:
        raise SystemExit(f"{asked.folder}: no problem was run on every rung yet")
    runs = [run for cell in found.values() for run, _ in cell]
    problems = read_problems(asked.problems, max(run.problem for run in runs) + 1)
    new = build_rows(found, asyncio.run(grade_answers(runs, problems)), asked.on)
    cells = dict(sorted({**read_page(asked.name), **new}.items(), key=lambda cell: cell[0][::-1]))
    save_json(
        asked.name,
        {"simulated": False, "rungs": [*chain(*(rows.values() for rows in cells.values()))]},
    )
    page = build_tables(cells)
    note = f"Measured, real engines. {STOCK_ENGINE}"
    save_tables(asked.name, "Every optimization on real engines", page, "ladder_page", note)
    draw_ladder_plot(cells, asked.name)
    print("\n\n".join(page))
    report(cells=[[*cell, rows[STOCK]["problems"]] for cell, rows in cells.items()])


if __name__ == "__main__":
    main()
