"""Which order of waiting requests is the best, and how does that depend on rate and dispersion?

    python -m scripts.bench.scheduling.policies [--requests 2000] [--seeds 8] [--explained MU SIGMA]

Single requests with known lengths on a simulated RTX 4090, served from event to event. Every policy
gets the same requests at the same times (paired by seed), the same predictions, and no preemption.
Predictions explain the shares of the variance of mu and of log sigma that --explained tells; left
out, the paper's. Rates are multiples of what the card serves; "batch"
is all requests at once. Ratios are over FCFS and over the better of the two point predictors
(ssjf, ltr), with 95 % bootstrap intervals over seeds. The last line is JSON.

Hypothesis (arXiv 2604.00499): at the paper's dispersion and overload TIE has 1.4 to 1.8 times lower
latency per token than the best point predictor, 2.3 times in the best case, and finishes 30 % of a
batch 1.4 times as soon.
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from scripts.bench.daemon import ROOT, report
from scripts.bench.flashtts.study import format_table, run_in_parallel
from scripts.bench.scheduling.workloads import BURST_RATE, WORKLOADS, build_engine, build_load
from scripts.lab.benchmark.load.comparison import compare_paired, estimate_mean, find_best
from scripts.lab.benchmark.load.timings import Timings, compute_order_quality, find_finish_time
from scripts.lab.benchmark.requests.event_driven import serve_by_events
from scripts.lab.benchmark.requests.predictions import PAPER, Quality
from scripts.lab.benchmark.requests.rivals import NAMES, POINT_RIVALS

RATES = (0.5, 0.9, 1.1, 1.5, 3.0, 8.0)
BATCH = "batch"
BATCH_SHARE = 0.3
"""The paper's time@3K of 10K."""

OUTPUT = ROOT / "runs" / "scheduling"
FIGURES = ("per_token_s", "per_token_p90_s", "ttft_s", "latency_s")
Task = tuple[str, int]  # workload, seed
Rows = dict[str, dict[str, dict[str, float]]]  # rate -> policy -> figures


def run_task(
    requests: int, rates: Sequence[float], policies: Sequence[str], quality: Quality, task: Task
) -> Rows:
    """Serve one workload and seed at all rates under all policies."""
    name, seed = task
    load, engine = build_load(name, requests, seed, quality), build_engine()
    found: Rows = {"about": {"dispersion": load.prompts.dispersion.to_json()}}
    found["about"]["capacity"] = {"per_s": load.capacity}
    used = (BURST_RATE,) if load.is_bursty else rates
    for rate in (*used, math.inf):
        case = load.build_case(rate)
        row: dict[str, dict[str, float]] = {}
        for policy in policies:
            order = load.rivals.order(policy, case.arrived_s, engine.max_num_seqs)
            served = serve_by_events(case, engine, order)
            row[policy] = describe(served.build_timings(case), served.preemptions)
        found[BATCH if rate == math.inf else f"{rate:g}"] = row
    return found


def describe(timings: Timings, preemptions: int) -> dict[str, float]:
    return {
        "per_token_s": float(timings.per_token_s.mean()),
        "per_token_p90_s": float(np.quantile(timings.per_token_s, 0.9)),
        "ttft_s": float(timings.ttft_s.mean()),
        "latency_s": float(timings.latency_s.mean()),
        "longest_wait_s": float(timings.wait_s.max()),
        "time_to_30_percent_s": find_finish_time(timings, BATCH_SHARE),
        "order_tau": compute_order_quality(timings),
        "preemptions": float(preemptions),
    }


def summarize(by_seed: Mapping[int, Rows]) -> dict[str, Any]:
    """Means over seeds by rate and policy, and paired ratios."""
    rates = [rate for rate in next(iter(by_seed.values())) if rate != "about"]
    return {rate: _summarize_rate(rate, by_seed) for rate in rates}


def _summarize_rate(rate: str, by_seed: Mapping[int, Rows]) -> dict[str, Any]:
    policies = list(next(iter(by_seed.values()))[rate])
    names = ("time_to_30_percent_s",) if rate == BATCH else FIGURES
    values = {
        figure: {p: {s: rows[rate][p][figure] for s, rows in by_seed.items()} for p in policies}
        for figure in (*names, "longest_wait_s", "order_tau")
    }
    points = [p for p in POINT_RIVALS if p in policies]
    best = {figure: find_best(values[figure], points) for figure in names} if points else {}
    found = {}
    for policy in policies:
        row = {figure: estimate_mean(values[figure][policy]).to_json() for figure in values}
        for figure in names:
            given = values[figure]
            over = {"fcfs": "fcfs", **({"best_point": best[figure]} if best else {})}
            for name, rival in over.items():
                if rival in given:
                    ratio = compare_paired(given[policy], given[rival])
                    row[f"{figure}_over_{name}"] = ratio.to_json()
        found[policy] = row
    return {"best_point": best, "policies": found}


def print_tables(workload: str, about: Mapping[str, Any], rates: Mapping[str, Any]) -> str:
    """One table of ratios over FCFS and over the best point predictor for each rate."""
    tables = []
    for rate, found in rates.items():
        figures = ("time_to_30_percent_s",) if rate == BATCH else ("per_token_s", "ttft_s")
        head = ["policy"]
        for figure in figures:
            head += [figure.removesuffix("_s"), "over fcfs", "over best point"]
        head += ["longest wait", "tau"]
        lines = []
        for policy, row in found["policies"].items():
            line = [policy]
            for figure in figures:
                line.append(f"{row[figure]['value']:.3f} s")
                line += [
                    _format_ratio(row.get(f"{figure}_over_{name}"))
                    for name in ("fcfs", "best_point")
                ]
            line += [f"{row['longest_wait_s']['value']:.0f} s", f"{row['order_tau']['value']:.2f}"]
            lines.append(line)
        title = f"{workload}, {rate if rate == BATCH else f'{rate} of what the card serves'}"
        tables.append(format_table(head, lines, title))
    return "\n\n".join([f"## {workload}\n\n{json.dumps(about)}", *tables])


def _format_ratio(ratio: Mapping[str, float] | None) -> str:
    if ratio is None:
        return "-"
    return f"{ratio['value']:.2f} ({ratio['low']:.2f}-{ratio['high']:.2f})"


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--requests", type=int, default=2000)
    parser.add_argument("--seeds", type=int, default=8)
    parser.add_argument("--rates", type=float, nargs="+", default=list(RATES))
    parser.add_argument("--workloads", nargs="+", choices=list(WORKLOADS), default=list(WORKLOADS))
    parser.add_argument("--policies", nargs="+", choices=NAMES, default=list(NAMES))
    parser.add_argument(
        "--explained",
        type=float,
        nargs=2,
        metavar=("MU", "SIGMA"),
        default=(PAPER.mu, PAPER.sigma),
        help="shares of the variances of mu and log sigma that predictions explain",
    )
    parser.add_argument("--quick", action="store_true", help="600 requests, 3 seeds")
    asked = parser.parse_args()
    requests, seeds = (600, 3) if asked.quick else (asked.requests, asked.seeds)
    tasks = [(name, seed) for name in asked.workloads for seed in range(seeds)]
    policies = [p for p in NAMES if p in {"fcfs", *asked.policies}]
    quality = Quality(mu=asked.explained[0], sigma=asked.explained[1])
    work = partial(run_task, requests, asked.rates, policies, quality)
    knows = "" if quality == PAPER else f"-{quality.mu:g}-{quality.sigma:g}"
    name = f"policies-{requests}-{'-'.join(map(str, asked.rates))}-{len(policies)}{knows}"
    by_workload: dict[str, dict[int, Rows]] = {}
    for (workload, seed), rows in run_in_parallel(name, work, tasks):
        by_workload.setdefault(workload, {})[seed] = rows
    figures: dict[str, Any] = {}
    pages = []
    for workload, by_seed in by_workload.items():
        about = {"about": WORKLOADS[workload].about, **next(iter(by_seed.values()))["about"]}
        figures[workload] = {**about, "rates": summarize(by_seed)}
        pages.append(print_tables(workload, about, figures[workload]["rates"]))
    OUTPUT.mkdir(parents=True, exist_ok=True)
    head = (
        "# Orders of waiting requests\n\nSimulated, not measured. Times are means over seeds,"
        " ratios are paired by seed with 95 % intervals."
    )
    (OUTPUT / f"policies{knows}.md").write_text(
        "\n\n".join([head, *pages]) + "\n", encoding="utf-8"
    )
    kept = json.dumps(figures, indent=1) + "\n"
    (OUTPUT / f"policies{knows}.json").write_text(kept, encoding="utf-8")
    print("\n\n".join(pages))
    report(requests=requests, seeds=seeds, explained=list(asked.explained), workloads=figures)


if __name__ == "__main__":
    main()
