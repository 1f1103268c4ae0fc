"""What do gang scheduling, shortest program first and early exit bring to whole programs?

    python -m scripts.bench.scheduling.programs [--rates 0.5 2 4 8] [--seeds 4] [--programs 60]

Searches by self-consistency and long chats on a simulated RTX 4090, by the product's driver, queue,
admission and board in virtual time. Every variant gets the same programs at the same times (paired
by seed), and path lengths are predicted with the errors of the paper's text predictor. How far the
paths of a problem agree was measured on the bundled pair. The base deadline of each kind is its
median latency at the lowest rate under fcfs; all difficulties count 2.
The last line is JSON. `real_programs` asks the same of real engines.

Hypothesis (arXiv 2412.20993 §4.2, App. G.2, G.3): at 90 % attainment the rate is 1.6 to 3.3 times
that of fcfs and of the longest prefix first, and the SLO scale 1.3 to 4.7 times tighter; gang
scheduling improves fairness.
"""

import argparse
import json
from collections.abc import Sequence
from dataclasses import replace
from functools import cache, partial
from random import Random
from typing import Any

from flashedge.config import load_config
from flashedge.runtime.request.early_exit import ExitOptions
from scripts.bench.daemon import report
from scripts.bench.flashtts.study import run_in_parallel
from scripts.bench.scheduling.program_study import (
    VARIANTS,
    Task,
    add_variants,
    format_study,
    list_variants,
    plan,
    summarize,
)
from scripts.bench.scheduling.study import OUTPUT
from scripts.bench.smoke import parse_arguments
from scripts.lab.benchmark.lengths import WORKLOADS
from scripts.lab.benchmark.load.timings import ProgramRecord
from scripts.lab.benchmark.load.virtual_load import (
    VirtualLoad,
    build_virtual_load,
    measure_load_dispersion,
    run_virtual_load,
)
from scripts.lab.benchmark.simulate import Question, build_bench
from scripts.lab.sim.model import StepTrace

STRATEGY, PATHS, PROBLEMS = "self_consistency", 16, 40
RATES = (0.5, 2.0, 4.0, 6.0, 8.0, 12.0)
AGREEMENT = (
    *(0.17, 0.23, 0.30, 0.37, 0.40, 0.47, 0.50, 0.57, 0.60, 0.63),
    *(0.63, 0.67, 0.73, 0.77, 0.80, 0.83, 0.87, 0.90, 0.93, 0.97),
)
"""Share of a problem's paths that give its most frequent answer: even quantiles over 1,000
calibration problems of the bundled pair, from the entropy of 30 answers each, as if the rest of
them all differed."""
Rows = list[dict[str, Any]]


@cache
def build_load(pair: str, most: int, workload: str, variant: str, seed: int) -> VirtualLoad:
    chosen = VARIANTS[variant]
    config = replace(load_config(), max_running=most, **chosen.list_settings())
    question = Question(
        gpu="rtx4090",
        pair=pair,
        strategy=STRATEGY,
        n=PATHS,
        workload=workload,
        problems=PROBLEMS,
        share=None,
    )
    load = build_virtual_load(build_bench(question, config), config, seed=seed)
    load = replace(load, trace=_set_agreement(load.trace, load.search_rows))
    if chosen.exits_early:
        return replace(load, search=replace(load.search, early_exit=ExitOptions()))
    return load


def _set_agreement(trace: StepTrace, searched: Sequence[int]) -> StepTrace:
    """Problems of all degrees of difficulty, the same for every seed and variant."""
    rows = list(trace.rows)
    shares = [AGREEMENT[place % len(AGREEMENT)] for place in range(len(searched))]
    Random(0).shuffle(shares)
    for row, share in zip(searched, shares, strict=True):
        rows[row] = replace(rows[row], right=share)
    return StepTrace(tuple(rows))


def run_task(pair: str, most: int, workload: str, programs: int, mix: str, task: Task) -> Rows:
    variant, rate, seed = task
    planned = plan(programs, rate, seed, mix, PROBLEMS)
    records = run_virtual_load(build_load(pair, most, workload, variant, seed), planned)
    return [record.to_json() for record in records]


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--programs", type=int, default=60)
    parser.add_argument("--rates", type=float, nargs="+", default=list(RATES))
    parser.add_argument("--seeds", type=int, default=4)
    parser.add_argument("--mix", default="chat=0.5,search=0.5")
    parser.add_argument("--pair", default="math-1.5b+skywork-1.5b", help="models")
    parser.add_argument("--workload", choices=list(WORKLOADS), default="math", help="of searches")
    add_variants(parser)
    parser.add_argument("--max-running", type=int, default=8, help="most searches at once")
    asked = parse_arguments(parser, programs=4, rates=[1.0], seeds=1, variants=["sjf+gang"])
    tasks = [
        (v, r, s)
        for v in list_variants(asked)
        for r in sorted(asked.rates)
        for s in range(asked.seeds)
    ]
    how = (asked.pair, asked.max_running, asked.workload)
    name = "-".join(map(str, ("programs", *how, asked.programs, asked.mix)))
    run = partial(run_task, *how, asked.programs, asked.mix)
    found = {
        task: [ProgramRecord.from_json(row) for row in rows]
        for task, rows in run_in_parallel(name, run, tasks)
    }
    figures = summarize(found)
    print(format_study(figures, "programs/s") + "\n")
    dispersion = measure_load_dispersion(build_load(*how, "fcfs", 0))
    OUTPUT.mkdir(parents=True, exist_ok=True)
    (OUTPUT / "programs.json").write_text(json.dumps(figures, indent=1) + "\n", encoding="utf-8")
    report(
        pair=asked.pair,
        max_running=asked.max_running,
        workload=asked.workload,
        programs=asked.programs,
        seeds=asked.seeds,
        mix=asked.mix,
        dispersion={kind: one.to_json() for kind, one in dispersion.items()},
        **figures,
    )


if __name__ == "__main__":
    main()
