"""The figures of one load, as plain JSON values."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from math import isfinite
from typing import Any

from flashedge.files.problems import ProblemId
from scripts.lab.benchmark.load.slo import (
    UNKNOWN,
    Slo,
    compute_attainment,
    find_least_scale,
    list_needed_scales,
    list_scale_curve,
)
from scripts.lab.benchmark.load.timings import (
    End,
    ProgramRecord,
    Timings,
    average_by_client,
    compute_jain,
    compute_order_quality,
    compute_throughput,
    list_fairness_curve,
    summarize_values,
)

Grades = Mapping[tuple[ProblemId, str | None], bool]
"""(problem, answer) -> whether it is right, where that is known."""


def build_report(
    records: Sequence[ProgramRecord], slo: Slo, grades: Grades | None = None
) -> dict[str, Any]:
    """Build the figures of all programs together and of each kind. Infinite and unknown figures are
    None."""
    kinds = sorted({record.kind for record in records})
    return {
        **_describe(records, slo, grades or {}),
        "by_kind": {
            str(kind): _describe([r for r in records if r.kind is kind], slo, grades or {})
            for kind in kinds
        },
        "by_client": average_by_client(records),
        "parts": 1 + max((record.part for record in records), default=0),
        "slo": describe_slo(records, slo),
        "errors": dict(Counter(r.error for r in records if r.error is not None).most_common()),
    }


def describe_slo(records: Sequence[ProgramRecord], slo: Slo) -> dict[str, Any]:
    """The deadlines, and for how many problems of the load their difficulty is known."""
    asked = {record.problem for record in records}
    return {
        "base_s": {str(kind): seconds for kind, seconds in slo.base_s.items()},
        "scale": slo.scale,
        "known_difficulties": sum(problem in slo.factors for problem in asked),
        "problems": len(asked),
        "factor_if_unknown": UNKNOWN,
    }


def _describe(records: Sequence[ProgramRecord], slo: Slo, grades: Grades) -> dict[str, Any]:
    ends = [record.end for record in records]
    timings = Timings.of_records(records)
    needed = list_needed_scales(records, slo)
    programs_per_s, tokens_per_s = compute_throughput(timings)
    attained = compute_attainment(needed, slo.scale)
    finished = ends.count(End.FINISHED)
    in_time = sum(one <= slo.scale for one in needed)
    clients = list(average_by_client(records).values())
    return {
        "programs": len(records),
        "finished": finished,
        "refused": ends.count(End.REFUSED),
        "failed": ends.count(End.FAILED),
        "latency_s": summarize_values(timings.latency_s),
        "per_token_s": summarize_values(timings.per_token_s),
        "ttft_s": summarize_values(timings.ttft_s),
        "wait_s": summarize_values(timings.wait_s),
        "late_s": max((record.late_s for record in records), default=0.0),
        "programs_per_s": programs_per_s,
        "tokens_per_s": tokens_per_s,
        "attainment": attained,
        "goodput_per_s": programs_per_s * in_time / finished if finished and needed else None,
        "scale_curve": list_scale_curve(needed),
        "least_scale": _keep_finite(find_least_scale(needed)),
        "jain": _keep_finite(compute_jain(timings.per_token_s)),
        "jain_of_clients": _keep_finite(compute_jain(clients)),
        "fairness_curve": list_fairness_curve(timings),
        "order_tau": _keep_finite(compute_order_quality(timings)),
        "accuracy": _compute_accuracy(records, grades),
    }


def _compute_accuracy(records: Sequence[ProgramRecord], grades: Grades) -> float | None:
    """The share of right answers among finished programs whose right answer is known."""
    graded = {problem for problem, _ in grades}
    asked = [r for r in records if r.end is End.FINISHED and r.problem in graded]
    if not asked:
        return None
    right = sum(grades.get((r.problem, r.answer), False) for r in asked)
    return right / len(asked)


def _keep_finite(value: float) -> float | None:
    return value if isfinite(value) else None
