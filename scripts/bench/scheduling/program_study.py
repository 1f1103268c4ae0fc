"""What the two studies of whole programs share: variants, loads, figures and tables.

Ref: arXiv 2412.20993 §4.2, App. F.3, G.2, G.3.
"""

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from random import Random
from statistics import median
from types import MappingProxyType
from typing import Any

from flashedge.config import Config
from flashedge.optimizations import Features
from flashedge.scheduling.programs.program import Kind
from flashedge.types import USUAL_POLICY
from scripts.bench.flashtts.study import format_table
from scripts.bench.scheduling.study import compare_paired, estimate_mean
from scripts.lab.benchmark.load.plan import Arrivals, PlannedProgram, parse_mix, plan_programs
from scripts.lab.benchmark.load.timings import (
    TARGET,
    End,
    Factors,
    ProgramRecord,
    Slo,
    Timings,
    compute_attainment,
    compute_jain,
    find_least_scale,
    list_fairness_curve,
    list_needed_scales,
)

Task = tuple[str, float, int]
"""(variant, rate, seed). Rates are programs a second, or multiples of a capacity."""
Rights = Mapping[Task, float]
"""The share of each task's programs whose answer is right."""
CLIENTS = 4
SCALES = (1.0, 2.0, 4.0)
"""Of the deadlines, for the rates at 90 % attainment."""
BASELINES = ("fcfs", "gang")
"""The paper's rivals that the product has."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Variant:
    """A way to schedule programs."""

    about: str
    policy: str
    is_gang: bool = False
    is_fair: bool = False
    """Whether clients take turns."""
    exits_early: bool = False

    def list_settings(self) -> dict[str, Any]:
        """The fields of `Config` that it needs."""
        return {
            "scheduling_policy": self.policy,
            "features": Features(gang=self.is_gang, fair_clients=self.is_fair),
            "queue_limit": 10_000,
        }


VARIANTS: Mapping[str, Variant] = {
    "fcfs": Variant(about="by arrival: the naive twin", policy="fcfs"),
    "fcfs+exit": Variant(about="and searches stop when certain", policy="fcfs", exits_early=True),
    "kinds": Variant(about="chats first, by arrival: what all below do as well", policy="gang"),
    "gang": Variant(
        about="programs by arrival, all requests of one together", policy="gang", is_gang=True
    ),
    "sjf": Variant(about="the least expected work first", policy="shortest"),
    "sjf+gang": Variant(about="and what has started first", policy="shortest", is_gang=True),
    "sjf+gang+exit": Variant(
        about="and searches stop when certain", policy="shortest", is_gang=True, exits_early=True
    ),
    "tie+gang": Variant(about="tie instead of sjf", policy="tie", is_gang=True),
    "tie+gang+exit": Variant(
        about="tie, gang and early exit", policy="tie", is_gang=True, exits_early=True
    ),
    "default order": Variant(
        about="sjf, gang, clients in turns", policy=USUAL_POLICY, is_gang=True, is_fair=True
    ),
    "default": Variant(
        about="sjf, gang, clients in turns, early exit",
        policy=USUAL_POLICY,
        is_gang=True,
        is_fair=True,
        exits_early=True,
    ),
}
assert all(hasattr(Config, name) for name in VARIANTS["fcfs"].list_settings())


def add_variants(parser: argparse.ArgumentParser) -> None:
    """The option `--variants`, for `list_variants`."""
    parser.add_argument(
        "--variants",
        nargs="+",
        choices=list(VARIANTS),
        default=list(VARIANTS),
        help="fcfs is always among them: all are compared with it",
    )


def list_variants(asked: argparse.Namespace) -> list[str]:
    return list(dict.fromkeys(("fcfs", *asked.variants)))


def plan(
    programs: int, rate: float, seed: int, mix: str, problems: int
) -> tuple[PlannedProgram, ...]:
    """So many programs at this rate. Other rates have the same ones, closer together."""
    draw, times, now_s = Random(seed), [], 0.0
    for _ in range(programs):
        now_s += draw.expovariate(1.0) / rate
        times.append(now_s)
    arrivals = Arrivals(times_s=tuple(times))
    return plan_programs(
        arrivals,
        parse_mix(mix),
        duration_s=2 * now_s,
        problems=problems,
        clients=CLIENTS,
        seed=seed,
    )


def build_slo(found: Mapping[Task, Sequence[ProgramRecord]], factors: Factors) -> Slo:
    """Deadlines from the latencies under fcfs at the lowest rate: a kind's base is its median."""
    lowest = min(rate for _, rate, _ in found)
    records = [r for task, rows in found.items() if task[:2] == ("fcfs", lowest) for r in rows]
    kinds = {record.kind for record in records}
    base_s: dict[Kind, float] = {
        kind: median(
            r.latency_s for r in records if r.kind is kind and r.end is End.FINISHED and r.latency_s
        )
        for kind in kinds
    }
    return Slo(base_s=base_s, factors=factors)


def describe(records: Sequence[ProgramRecord], needed: Sequence[float]) -> dict[str, float]:
    """needed: see `list_needed_scales`."""
    timings = Timings.of_records(records)
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


def summarize(
    found: Mapping[Task, Sequence[ProgramRecord]],
    rights: Rights | None = None,
    factors: Factors = MappingProxyType({}),
) -> dict[str, Any]:
    """Means over seeds by variant and rate, paired ratios, and the rate at 90 % attainment.

    The deadlines are those of the lowest rate under fcfs, times the factors of the problems. A
    variant may have more to its name after a comma.
    """
    rates = sorted({rate for _, rate, _ in found})
    seeds = sorted({seed for _, _, seed in found})
    slo = build_slo(found, factors)
    needed = {task: list_needed_scales(records, slo) for task, records in found.items()}
    cells = {task: describe(records, needed[task]) for task, records in found.items()}
    sustained = {scale: _find_sustained(needed, scale) for scale in SCALES}
    if rights is not None:
        cells = {task: {**cell, "right": rights[task]} for task, cell in cells.items()}
    figures: dict[str, Any] = {}
    for variant in dict.fromkeys(name for name, _, _ in found):
        rows = {f"{rate:g}": _summarize_cell(found, cells, variant, rate, seeds) for rate in rates}
        figures[variant] = {
            "about": VARIANTS[variant.partition(",")[0]].about,
            "rate_at_90_percent": {
                f"{scale:g}": _compare_sustained(by_variant, variant)
                for scale, by_variant in sustained.items()
            },
            "rates": rows,
        }
    base_s = {str(kind): round(seconds, 4) for kind, seconds in slo.base_s.items()}
    return {"base_deadlines_s": base_s, "variants": figures}


def _find_sustained(
    needed: Mapping[Task, Sequence[float]], scale: float
) -> Mapping[str, Mapping[int, float]]:
    """The highest rate at which 90 % of the deadlines are met, by variant and seed."""
    points: dict[str, dict[int, list[tuple[float, float]]]] = {}
    for variant, rate, seed in sorted(needed):
        share = compute_attainment(needed[variant, rate, seed], scale) or 0.0
        points.setdefault(variant, {}).setdefault(seed, []).append((rate, share))
    return {
        variant: {seed: find_highest_rate(one) for seed, one in by_seed.items()}
        for variant, by_seed in points.items()
    }


def find_highest_rate(points: Sequence[tuple[float, float]]) -> float:
    """The highest rate up to which the attainment is at least `TARGET`.

    points: (rate, attainment) from the lowest rate on. Between two rates it is interpolated. 0 if
    the lowest rate misses it already; the highest rate measured if none misses it.
    """
    last: tuple[float, float] | None = None
    for rate, share in points:
        if share < TARGET:
            if last is None:
                return 0.0
            return last[0] + (rate - last[0]) * (last[1] - TARGET) / (last[1] - share)
        last = rate, share
    return last[0] if last else 0.0


def _compare_sustained(
    by_variant: Mapping[str, Mapping[int, float]], variant: str
) -> dict[str, Any]:
    """The variant's rate, and how many times higher it is than those of the baselines, over the
    seeds in which these have one at all."""
    row: dict[str, Any] = {**estimate_mean(by_variant[variant]).to_json()}
    for name in BASELINES:
        theirs = {seed: rate for seed, rate in by_variant.get(name, {}).items() if rate > 0}
        if theirs:
            row[f"over_{name}"] = compare_paired(theirs, by_variant[variant]).to_json()
    return row


def _summarize_cell(
    found: Mapping[Task, Sequence[ProgramRecord]],
    cells: Mapping[Task, Mapping[str, float]],
    variant: str,
    rate: float,
    seeds: Sequence[int],
) -> dict[str, Any]:
    names = cells[variant, rate, seeds[0]]
    ours = {name: {s: cells[variant, rate, s][name] for s in seeds} for name in names}
    fcfs = {
        name: {s: cells["fcfs", rate, s][name] for s in seeds}
        for name in ("latency_s", "per_token_s", "least_scale")
    }
    records = [r for s in seeds for r in found[variant, rate, s]]
    return {
        **{name: estimate_mean(by_seed).to_json() for name, by_seed in ours.items()},
        **{
            f"{name.removesuffix('_s')}_over_fcfs": compare_paired(ours[name], theirs).to_json()
            for name, theirs in fcfs.items()
        },
        "fairness_curve": list_fairness_curve(Timings.of_records(records)),
    }


def format_study(figures: Mapping[str, Any], unit: str) -> str:
    """A table of all variants and rates, and one of the rates at 90 % attainment."""
    lines: list[tuple[str, ...]] = []
    names: list[str] = []
    for variant, found in figures["variants"].items():
        for rate, row in found["rates"].items():
            names = [name for name in row if name != "fairness_curve"]
            values = [
                f"{row[n]['value']:.3g}"
                + (f" ({row[n]['low']:.2f}-{row[n]['high']:.2f})" if "over" in n else "")
                for n in names
            ]
            lines.append((variant, rate, *values))
    rates = [
        (
            name,
            scale,
            f"{row['value']:.3g}",
            *(_format_ratio(row.get(f"over_{base}")) for base in BASELINES),
            found["about"],
        )
        for name, found in figures["variants"].items()
        for scale, row in found["rate_at_90_percent"].items()
    ]
    return "\n\n".join(
        (
            format_table(("variant", unit, *names), lines),
            format_table(
                (
                    "variant",
                    "deadlines",
                    f"{unit} at 90 % attainment",
                    *(f"over {base}" for base in BASELINES),
                    "about",
                ),
                rates,
            ),
        )
    )


def _format_ratio(ratio: Mapping[str, float] | None) -> str:
    if ratio is None:
        return "-"
    return f"{ratio['value']:.2f} ({ratio['low']:.2f}-{ratio['high']:.2f}), {ratio['seeds']} seeds"
