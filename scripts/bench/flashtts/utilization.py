"""How busy is the card over a level? (the paper's Figs. 4 and 16, left)

    python -m scripts.bench.flashtts.utilization [--n 64] [--level 2]
        [--lengths smooth|observed]

Runs one AIME-like problem on the simulated 4090 with 1.5B + 1.5B, and reports the share of peak
FLOP/s and the number of sequences of each engine step in one level's generation and verification.
The batch empties as paths finish, until one straggler is left; verification runs at the peak. With
speculation the batch stays fuller. The last line is JSON.
"""

import argparse
import asyncio
from dataclasses import dataclass
from statistics import mean
from typing import Any

from flashedge.plots import draw_plot
from flashedge.scheduling.costs import count_flops
from scripts.bench.daemon import report
from scripts.bench.flashtts.study import (
    add_lengths_flag,
    build_cell,
    format_table,
    locate_picture,
    save_json,
    save_tables,
)
from scripts.bench.smoke import parse_arguments
from scripts.lab.benchmark.ladder import RUNGS, Rung
from scripts.lab.benchmark.simulate import Bench
from scripts.lab.benchmark.virtual_run import simulate_run
from scripts.lab.sim.scheduler import Slice

NAME = "utilization"
WAYS = {"off": RUNGS[3], "on": RUNGS[4]}


@dataclass(frozen=True, slots=True)
class Step:
    """One step of an engine."""

    engine: str

    at_s: float
    """Time at its end."""

    took_s: float
    sequences: int

    utilization: float
    """Share of peak FLOP/s."""


def record_steps(bench: Bench, row: int, rung: Rung) -> list[Step]:
    setup, found = bench.setup, list[Step]()

    def note(engine: str, batch: tuple[Slice, ...], took_s: float) -> None:
        shape = setup.generator if engine == "generator" else setup.verifier
        flops = sum(count_flops(shape, work.context, work.new) for work in batch)
        share = flops / took_s / setup.device.flops
        now_s = asyncio.get_running_loop().time()
        found.append(Step(engine, now_s, took_s, len(batch), share))

    simulate_run(rung, setup, bench.trace, bench.spec(row), on_step=note)
    return found


def select_level(steps: list[Step], number: int) -> list[Step]:
    """Select the steps of a level: its generation, and the verification after it."""
    levels: list[list[Step]] = []
    last = "verifier"
    for step in steps:
        if step.engine == "generator" and last == "verifier":
            levels.append([])
        levels[-1].append(step)
        last = step.engine
    return levels[number - 1]


def summarize_level(level: list[Step]) -> dict[str, float]:
    generating = [s for s in level if s.engine == "generator"]
    scoring = [s for s in level if s.engine == "verifier"]

    def busy(steps: list[Step]) -> float:
        took_s = sum(s.took_s for s in steps)
        return sum(s.utilization * s.took_s for s in steps) / took_s if took_s else 0.0

    half = len(generating) // 2
    return {
        "generate_s": sum(s.took_s for s in generating),
        "verify_s": sum(s.took_s for s in scoring),
        "sequences, first half": mean(s.sequences for s in generating[:half]),
        "sequences, second half": mean(s.sequences for s in generating[half:]),
        "utilization, first half": busy(generating[:half]),
        "utilization, second half": busy(generating[half:]),
        "utilization, verifier": busy(scoring),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--n", type=int, default=64)
    parser.add_argument("--level", type=int, default=2)
    add_lengths_flag(parser)
    asked = parse_arguments(parser)
    bench = build_cell("1.5B+1.5B", "aime", asked.n, problems=3, lengths=asked.lengths)
    row = bench.rows[1]
    levels = {
        name: select_level(record_steps(bench, row, rung), asked.level)
        for name, rung in WAYS.items()
    }
    figures = {name: summarize_level(level) for name, level in levels.items()}
    for what, of in (("utilization", "share of peak FLOP/s"), ("sequences", "sequences")):
        series: dict[str, list[tuple[float, float]]] = {}
        for name, level in levels.items():
            began = level[0].at_s - level[0].took_s
            series[f"speculation {name}"] = [
                (s.at_s - began, float(getattr(s, what))) for s in level
            ]
        draw_plot(
            locate_picture(f"{NAME}-{what}"),
            series,
            title=f"Simulated 4090, 1.5B+1.5B, n = {asked.n}: level {asked.level}",
            x="seconds",
            y=of,
            steps=True,
        )
    names = list(next(iter(figures.values())))
    lines = [(name, *(f"{f[k]:.3g}" for k in names)) for name, f in figures.items()]
    about = f"1.5B+1.5B, AIME-like, n = {asked.n}, level {asked.level}"
    made: Any = format_table(("speculation", *names), lines, about)
    save_tables(NAME, "Utilization over a level", [made])
    save_json(NAME, {"simulated": True, **vars(asked), "levels": figures})
    print(made)
    report(simulated=True, **vars(asked), levels=figures)


if __name__ == "__main__":
    main()
