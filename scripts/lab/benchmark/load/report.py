"""The figures of one load: as plain JSON values, and as a table and sentences."""

from collections import Counter
from collections.abc import Mapping, Sequence
from math import isfinite
from typing import Any

from flashedge.cli import output
from flashedge.client.words import format_count
from flashedge.files.problems import ProblemId
from scripts.lab.benchmark.load import timings
from scripts.lab.benchmark.load.timings import End, ProgramRecord, Slo

Grades = Mapping[tuple[ProblemId, str | None], bool]
"""(problem, answer) -> whether it is right, where that is known."""


def build_report(
    records: Sequence[ProgramRecord], slo: Slo, grades: Grades | None = None
) -> dict[str, Any]:
    """The figures of all programs and of each kind. Infinite and unknown ones are None."""
    kinds = sorted({record.kind for record in records})
    asked = {record.problem for record in records}
    return {
        **_describe(records, slo, grades or {}),
        "by_kind": {
            str(kind): _describe([r for r in records if r.kind is kind], slo, grades or {})
            for kind in kinds
        },
        "by_client": timings.average_by_client(records),
        "parts": 1 + max((record.part for record in records), default=0),
        "slo": {
            "base_s": {str(kind): seconds for kind, seconds in slo.base_s.items()},
            "scale": slo.scale,
            "known_difficulties": len(asked & slo.factors.keys()),
            "problems": len(asked),
            "factor_if_unknown": timings.UNKNOWN,
        },
        "errors": dict(Counter(r.error for r in records if r.error is not None).most_common()),
    }


def _describe(records: Sequence[ProgramRecord], slo: Slo, grades: Grades) -> dict[str, Any]:
    ends = [record.end for record in records]
    served = timings.Timings.of_records(records)
    needed = timings.list_needed_scales(records, slo)
    programs_per_s, tokens_per_s = timings.compute_throughput(served)
    attained = timings.compute_attainment(needed, slo.scale)
    finished = ends.count(End.FINISHED)
    in_time = sum(one <= slo.scale for one in needed)
    clients = list(timings.average_by_client(records).values())
    return {
        "programs": len(records),
        "finished": finished,
        "refused": ends.count(End.REFUSED),
        "failed": ends.count(End.FAILED),
        "latency_s": timings.summarize_values(served.latency_s),
        "per_token_s": timings.summarize_values(served.per_token_s),
        "ttft_s": timings.summarize_values(served.ttft_s),
        "wait_s": timings.summarize_values(served.wait_s),
        "late_s": max((record.late_s for record in records), default=0.0),
        "programs_per_s": programs_per_s,
        "tokens_per_s": tokens_per_s,
        "attainment": attained,
        "goodput_per_s": programs_per_s * in_time / finished if finished and needed else None,
        "scale_curve": timings.list_scale_curve(needed),
        "least_scale": _keep_finite(timings.find_least_scale(needed)),
        "jain": _keep_finite(timings.compute_jain(served.per_token_s)),
        "jain_of_clients": _keep_finite(timings.compute_jain(clients)),
        "fairness_curve": timings.list_fairness_curve(served),
        "order_tau": _keep_finite(timings.compute_order_quality(served)),
        "accuracy": _compute_accuracy(records, grades),
    }


def _compute_accuracy(records: Sequence[ProgramRecord], grades: Grades) -> float | None:
    """The share of right answers among finished programs whose right answer is known."""
    graded = {problem for problem, _ in grades}
    asked = [r for r in records if r.end is End.FINISHED and r.problem in graded]
    if not asked:
        return None
    return sum(grades.get((r.problem, r.answer), False) for r in asked) / len(asked)


def _keep_finite(value: float) -> float | None:
    return value if isfinite(value) else None


COLUMNS = (
    "",
    "programs",
    "s/token mean",
    "p90",
    "first token p50",
    "p90",
    "p99",
    "latency p50",
    "p90",
    "p99",
    "in time",
    "right",
)


def print_report(report: Mapping[str, Any]) -> None:
    """Print a report on stdout."""
    ends = [f"{report['finished']:,} of {format_count(report['programs'], 'program')} finished"]
    if report["refused"]:
        ends.append(f"{report['refused']:,} were refused because the queue was full")
    if report["failed"]:
        ends.append(f"{report['failed']:,} failed")
    output.say(", ".join(ends))
    for error, count in list(report["errors"].items())[:3]:
        output.note(f"{count} times: {error}")
    rows = [("all", report), *report["by_kind"].items()]
    output.print_table(COLUMNS, [_format_row(name, row) for name, row in rows], "nothing ran")
    output.say()
    if report["wait_s"] is not None:
        output.say(
            f"{report['programs_per_s']:.2f} programs and {report['tokens_per_s']:.0f} tokens a"
            f" second. The longest wait for the start took {report['wait_s']['max']:.2f} s."
        )
    if report["order_tau"] is not None:
        output.say(
            f"Kendall's tau between the order of starts and the lengths: {report['order_tau']:.2f}"
            " (1: the shortest first)."
        )
    if report["jain"] is not None:
        output.say(
            f"Jain's index of latency per token: {report['jain']:.2f} over programs,"
            f" {report['jain_of_clients']:.2f} over clients (1: all fare alike)."
        )
    if report["attainment"] is not None:
        slo = report["slo"]
        base = ", ".join(f"{kind} {seconds:g} s" for kind, seconds in slo["base_s"].items())
        output.say(
            f"Deadlines: {base}, times {slo['scale']:g}, times the problem's difficulty. It is"
            f" known for {slo['known_difficulties']} of"
            f" {format_count(slo['problems'], 'problem')}; the others count"
            f" {slo['factor_if_unknown']:g}."
        )
        output.say(f"{report['goodput_per_s'] or 0:.2f} programs a second met their deadline.")
        if report["least_scale"] is None:
            output.say("No SLO scale lets 90 % of the programs meet their deadline.")
        else:
            output.say(
                f"90 % would meet it at an SLO scale of {report['least_scale']:.2f} or more."
            )
    if report["late_s"] > 0.1:
        output.warn(
            f"This machine sent programs up to {report['late_s']:.1f} s late. Latencies count from"
            " the planned time."
        )
    if report["parts"] > 1:
        output.warn(
            f"The load was interrupted and resumed {report['parts'] - 1} times. The daemon was idle"
            " at the start of each part."
        )


def _format_row(name: str, row: Mapping[str, Any]) -> tuple[object, ...]:
    times = [
        None if row[figure] is None else f"{row[figure][part]:.3g}"
        for figure, parts in (
            ("per_token_s", ("mean", "p90")),
            ("ttft_s", ("p50", "p90", "p99")),
            ("latency_s", ("p50", "p90", "p99")),
        )
        for part in parts
    ]
    shares = (row["attainment"], row["accuracy"])
    return (
        name,
        row["programs"],
        *times,
        *(None if share is None else f"{share:.0%}" for share in shares),
    )
