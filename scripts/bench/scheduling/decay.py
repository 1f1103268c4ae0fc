"""Which decay of the score keeps long requests from starving, and what does it cost?

    python -m scripts.bench.scheduling.decay [--requests 2000] [--seeds 6] [--policy tie]

A score is multiplied by gamma for every delta seconds of waiting (arXiv 2604.00499 §4; its text has
lost both values). The pair is chosen on the calibration seeds alone: of all pairs whose mean
latencies, per token and whole, are within a tolerance of those without decay, the one with the
shortest longest wait, at the mean over workloads and rates. It is then judged on other seeds.
Beside it stands escalation: a request that waited for so long goes first, by arrival. The last line
is JSON.

Hypothesis: a decay within 2 % of both latencies halves the longest wait under overload.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

import numpy as np

from flashedge.scheduling.programs.policies import NO_DECAY, Decay
from scripts.bench.daemon import report
from scripts.bench.flashtts.study import format_table, run_in_parallel
from scripts.bench.scheduling.policies import OUTPUT
from scripts.bench.scheduling.workloads import Load, build_engine, build_load
from scripts.lab.benchmark.load.comparison import Estimate, compare_paired
from scripts.lab.benchmark.requests.event_driven import RequestCase, WaitingOrder, serve_by_events
from scripts.lab.benchmark.requests.rivals import NAMES, EscalatingOrder

CHOSEN_ON, JUDGED_ON = 100, 0
"""First seeds of the calibration and of the judgement."""

WORKLOADS = ("cv 1.09", "trace and chats", "burst")
RATES = (0.9, 1.1, 1.5)
FACTORS = (0.98, 0.95, 0.9, 0.8, 0.7, 0.5)
INTERVALS_S = (0.5, 2.0, 5.0, 10.0, 30.0)
ESCALATIONS_S = (10.0, 20.0, 40.0, 60.0, 120.0)
TOLERANCE = 0.02
MEANS = ("per_token_s", "latency_s")
WAITS = ("longest_wait_s", "p99_wait_s")
Task = tuple[str, int]  # workload, seed
Cells = dict[str, dict[str, dict[str, float]]]  # rule -> rate -> figures


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """One way to keep requests from starving."""

    decay: Decay = NO_DECAY
    escalate_after_s: float | None = None
    policy: str | None = None
    """Another policy than the one that is studied."""

    def __str__(self) -> str:
        if self.policy is not None:
            return self.policy
        if self.escalate_after_s is not None:
            return f"escalate after {self.escalate_after_s:g} s"
        if self.decay == NO_DECAY:
            return "none"
        return f"gamma {self.decay.factor:g}, delta {self.decay.interval_s:g} s"

    def build_order(self, load: Load, case: RequestCase, policy: str) -> WaitingOrder:
        batch, arrived_s = build_engine().max_num_seqs, case.arrived_s
        order = load.rivals.order(self.policy or policy, arrived_s, batch, self.decay)
        if self.escalate_after_s is None:
            return order
        return EscalatingOrder(inner=order, arrived_s=arrived_s, after_s=self.escalate_after_s)


NONE, FCFS = Rule(), Rule(policy="fcfs")
DECAYS = tuple(
    Rule(decay=Decay(factor=factor, interval_s=interval_s))
    for factor in FACTORS
    for interval_s in INTERVALS_S
)
ESCALATIONS = tuple(Rule(escalate_after_s=seconds) for seconds in ESCALATIONS_S)
RULES = {str(rule): rule for rule in (NONE, FCFS, *DECAYS, *ESCALATIONS)}


def run_task(requests: int, policy: str, task: Task) -> Cells:
    """Serve one workload and seed at all rates under all rules."""
    name, seed = task
    load, engine = build_load(name, requests, seed), build_engine()
    found: Cells = {rule: {} for rule in RULES}
    for rate in (0.7,) if load.is_bursty else RATES:
        case = load.build_case(rate)
        for name, rule in RULES.items():
            served = serve_by_events(case, engine, rule.build_order(load, case, policy))
            timings = served.build_timings(case)
            found[name][f"{rate:g}"] = {
                "per_token_s": float(timings.per_token_s.mean()),
                "latency_s": float(timings.latency_s.mean()),
                "longest_wait_s": float(timings.wait_s.max()),
                "p99_wait_s": float(np.quantile(timings.wait_s, 0.99)),
            }
    return found


class Found:
    """Figures of all rules on some seeds."""

    def __init__(self, cells: Mapping[Task, Cells]) -> None:
        self._cells = cells

    def compare(self, rule: str, figure: str, with_rule: str = str(NONE)) -> Estimate:
        """The figure's ratio to the one of another rule, paired by seed: the mean over workloads
        and rates within each seed, then over seeds. Above 1: the other one's is higher."""
        ratios: dict[int, list[float]] = {}
        for (_, seed), cells in self._cells.items():
            for rate, figures in cells[rule].items():
                other = cells[with_rule][rate][figure]
                ratios.setdefault(seed, []).append(other / max(figures[figure], 1e-9))
        by_seed = {seed: float(np.mean(values)) for seed, values in ratios.items()}
        return compare_paired(dict.fromkeys(by_seed, 1.0), by_seed)

    def describe(self, rule: str) -> dict[str, Any]:
        return {figure: self.compare(rule, figure).to_json() for figure in (*MEANS, *WAITS)} | {
            "longest_wait_over_fcfs": self.compare(rule, WAITS[0], str(FCFS)).to_json()
        }

    def choose(self, rules: Sequence[Rule], tolerance: float) -> str | None:
        """The rule with the shortest longest wait among those that are within the tolerance of both
        mean latencies without a rule. None if none is."""
        names = [
            str(rule)
            for rule in rules
            if all(self.compare(str(rule), mean).value >= 1 - tolerance for mean in MEANS)
        ]
        return max(names, key=lambda name: self.compare(name, WAITS[0]).value, default=None)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--requests", type=int, default=2000)
    parser.add_argument("--seeds", type=int, default=6, help="of the calibration, and of the rest")
    parser.add_argument("--policy", choices=NAMES, default="tie")
    parser.add_argument("--tolerance", type=float, default=TOLERANCE)
    asked = parser.parse_args()
    seeds = [*range(CHOSEN_ON, CHOSEN_ON + asked.seeds), *range(JUDGED_ON, JUDGED_ON + asked.seeds)]
    tasks = [(name, seed) for name in WORKLOADS for seed in seeds]
    work = partial(run_task, asked.requests, asked.policy)
    cells = dict(run_in_parallel(f"decay-{asked.policy}-{asked.requests}", work, tasks))
    calibration = Found({task: found for task, found in cells.items() if task[1] >= CHOSEN_ON})
    judgement = Found({task: found for task, found in cells.items() if task[1] < CHOSEN_ON})
    chosen = calibration.choose(DECAYS, asked.tolerance)
    escalation = calibration.choose(ESCALATIONS, asked.tolerance)
    figures = {
        "policy": asked.policy,
        "chosen": chosen,
        "decay": None if chosen is None else asdict(RULES[chosen].decay),
        "escalation": escalation,
        "calibration": {name: calibration.describe(name) for name in RULES},
        "judged": {
            name: judgement.describe(name)
            for name in dict.fromkeys((str(NONE), str(FCFS), chosen, escalation))
            if name is not None
        },
    }
    head = ("rule", "latency per token", "latency", "longest wait", "p99 wait", "over FCFS's wait")
    for title, rows in (
        ("calibration seeds", figures["calibration"]),
        ("judged", figures["judged"]),
    ):
        lines = [
            (name, *(f"{value['value']:.3f}" for value in row.values()))
            for name, row in rows.items()
        ]
        print(
            format_table(head, lines, f"{title}: how many times lower than without a rule") + "\n"
        )
    OUTPUT.mkdir(parents=True, exist_ok=True)
    (OUTPUT / "decay.json").write_text(json.dumps(figures, indent=1) + "\n", encoding="utf-8")
    report(requests=asked.requests, seeds=asked.seeds, **figures)


if __name__ == "__main__":
    main()
