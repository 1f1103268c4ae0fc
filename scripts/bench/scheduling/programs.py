"""What do gang scheduling, shortest program first and early exit bring to whole programs?

    python -m scripts.bench.scheduling.programs [--rates 0.5 2 4 8] [--seeds 4] [--programs 60]

Searches by self-consistency and long chats on a simulated RTX 4090, by the product's driver, queue,
admission and board in virtual time. Every variant gets the same programs at the same times (paired
by seed), and path lengths are predicted with the errors of the paper's text predictor. The base
deadline of each kind is its median latency at the lowest rate under fcfs; all difficulties count 2.
The last line is JSON.

Hypothesis (arXiv 2412.20993 §4.2, App. G.2, G.3): at 90 % attainment the rate is 1.6 to 3.3 times
that of fcfs and of the longest prefix first, and the SLO scale 1.3 to 4.7 times tighter; gang
scheduling improves fairness.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache, partial
from random import Random
from statistics import median
from typing import Any

from flashedge.benchmark.load.arrivals import RecordedArrivals
from flashedge.benchmark.load.attainment import (
    compute_attainment,
    find_highest_rate,
    find_least_scale,
    list_needed_scales,
)
from flashedge.benchmark.load.comparison import compare_paired, estimate_mean
from flashedge.benchmark.load.fairness import compute_jain, list_fairness_curve
from flashedge.benchmark.load.plan import PlannedProgram, parse_mix, plan_programs
from flashedge.benchmark.load.record import End, ProgramRecord
from flashedge.benchmark.load.slo import Slo
from flashedge.benchmark.load.timings import Timings
from flashedge.benchmark.load.virtual_load import build_virtual_load, measure_load_dispersion
from flashedge.benchmark.load.virtual_server import VirtualLoad, run_virtual_load
from flashedge.benchmark.simulate import Question, build_bench
from flashedge.config import load_config
from flashedge.runtime.request.early_exit import ExitOptions
from flashedge.scheduling.programs.program import Kind
from scripts.bench.daemon import report
from scripts.bench.flashtts.study import format_table, run_in_parallel
from scripts.bench.scheduling.policies import OUTPUT

PAIR, STRATEGY, PATHS, PROBLEMS = "math-1.5b+skywork-1.5b", "self_consistency", 16, 40
RATES = (0.5, 2.0, 4.0, 6.0, 8.0, 12.0)
Task = tuple[str, float, int]  # variant, rate, seed
Rows = list[dict[str, Any]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Variant:
    """A way to schedule programs."""

    about: str
    policy: str
    is_gang: bool = False
    exits_early: bool = False


VARIANTS: Mapping[str, Variant] = {
    "fcfs": Variant(about="by arrival: the naive twin", policy="fcfs"),
    "prefix": Variant(about="the longest cached prefix first", policy="prefix"),
    "sjf": Variant(about="the least expected work first", policy="shortest"),
    "sjf+gang": Variant(about="and what has started first", policy="shortest", is_gang=True),
    "sjf+gang+exit": Variant(
        about="and searches stop when certain", policy="shortest", is_gang=True, exits_early=True
    ),
    "tie+gang": Variant(about="tie instead of sjf", policy="tie", is_gang=True),
    "tie+gang+exit": Variant(
        about="tie, gang and early exit", policy="tie", is_gang=True, exits_early=True
    ),
}


@cache
def build_load(variant: str, seed: int) -> VirtualLoad:
    chosen = VARIANTS[variant]
    config = replace(
        load_config(),
        scheduling_policy=chosen.policy,
        scheduling_gang=chosen.is_gang,
        scheduling_fair_clients=False,
        queue_limit=10_000,
    )
    question = Question(
        gpu="rtx4090", pair=PAIR, strategy=STRATEGY, n=PATHS, problems=PROBLEMS, share=None
    )
    load = build_virtual_load(build_bench(question, config), config, seed=seed)
    if chosen.exits_early:
        return replace(load, search=replace(load.search, early_exit=ExitOptions()))
    return load


def plan(programs: int, rate: float, seed: int, mix: str) -> tuple[PlannedProgram, ...]:
    """So many programs at this rate. Other rates have the same ones, closer together."""
    draw, times, now_s = Random(seed), [], 0.0
    for _ in range(programs):
        now_s += draw.expovariate(1.0) / rate
        times.append(now_s)
    arrivals = RecordedArrivals(times_s=tuple(times))
    return plan_programs(
        arrivals, parse_mix(mix), duration_s=2 * now_s, problems=PROBLEMS, clients=4, seed=seed
    )


def run_task(programs: int, mix: str, task: Task) -> Rows:
    variant, rate, seed = task
    records = run_virtual_load(build_load(variant, seed), plan(programs, rate, seed, mix))
    return [record.to_json() for record in records]


def describe(records: list[ProgramRecord], slo: Slo) -> dict[str, float]:
    timings, needed = Timings.of_records(records), list_needed_scales(records, slo)
    return {
        "latency_s": float(timings.latency_s.mean()),
        "per_token_s": float(timings.per_token_s.mean()),
        "ttft_s": float(timings.ttft_s.mean()),
        "attainment": compute_attainment(needed, 1.0) or 0.0,
        "least_scale": find_least_scale(needed),
        "jain": compute_jain(timings.per_token_s),
        "longest_wait_s": float(timings.wait_s.max()),
        "output_tokens": float(timings.output_tokens.sum()),
    }


def build_slo(records: list[ProgramRecord]) -> Slo:
    """Deadlines from the latencies of an idle server."""
    kinds = {record.kind for record in records}
    base_s: dict[Kind, float] = {
        kind: median(
            r.latency_s for r in records if r.kind is kind and r.end is End.FINISHED and r.latency_s
        )
        for kind in kinds
    }
    return Slo(base_s=base_s)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--programs", type=int, default=60)
    parser.add_argument("--rates", type=float, nargs="+", default=list(RATES))
    parser.add_argument("--seeds", type=int, default=4)
    parser.add_argument("--mix", default="chat=0.5,search=0.5")
    asked = parser.parse_args()
    rates, seeds = sorted(asked.rates), range(asked.seeds)
    tasks = [(v, rate, seed) for v in VARIANTS for rate in rates for seed in seeds]
    name = f"programs-{asked.programs}-{asked.mix}"
    found = {
        task: [ProgramRecord.from_json(row) for row in rows]
        for task, rows in run_in_parallel(name, partial(run_task, asked.programs, asked.mix), tasks)
    }
    slo = build_slo([r for seed in seeds for r in found["fcfs", rates[0], seed]])
    cells = {task: describe(records, slo) for task, records in found.items()}
    figures: dict[str, Any] = {}
    lines: list[tuple[str, ...]] = []
    for variant in VARIANTS:
        rows: dict[str, dict[str, Any]] = {}
        for rate in rates:
            ours = {f: {s: cells[variant, rate, s][f] for s in seeds} for f in cells[tasks[0]]}
            theirs = {s: cells["fcfs", rate, s]["latency_s"] for s in seeds}
            rows[f"{rate:g}"] = {
                **{name: estimate_mean(by_seed).to_json() for name, by_seed in ours.items()},
                "latency_over_fcfs": compare_paired(ours["latency_s"], theirs).to_json(),
                "fairness_curve": list_fairness_curve(
                    Timings.of_records(r for s in seeds for r in found[variant, rate, s])
                ),
            }
        points = [(rate, rows[f"{rate:g}"]["attainment"]["value"]) for rate in rates]
        figures[variant] = {
            "about": VARIANTS[variant].about,
            "rate_at_90_percent": find_highest_rate(points),
            "rates": rows,
        }
        for rate in rates:
            row = rows[f"{rate:g}"]
            lines.append(
                (
                    variant,
                    f"{rate:g}",
                    *(f"{row[name]['value']:.3g}" for name in cells[tasks[0]]),
                    f"{row['latency_over_fcfs']['value']:.2f}",
                )
            )
    head = ("variant", "programs/s", *cells[tasks[0]], "latency over fcfs")
    print(format_table(head, lines) + "\n")
    dispersion = measure_load_dispersion(build_load("fcfs", 0))
    OUTPUT.mkdir(parents=True, exist_ok=True)
    (OUTPUT / "programs.json").write_text(json.dumps(figures, indent=1) + "\n", encoding="utf-8")
    report(
        programs=asked.programs,
        seeds=asked.seeds,
        mix=asked.mix,
        base_deadlines_s={str(kind): seconds for kind, seconds in slo.base_s.items()},
        dispersion={kind: one.to_json() for kind, one in dispersion.items()},
        variants=figures,
    )


if __name__ == "__main__":
    main()
