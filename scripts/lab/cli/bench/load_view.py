"""The figures of a load, as a table and sentences."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from flashedge.cli import output
from flashedge.client.words import format_count

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
    """Print a report of `benchmark.load.report` on stdout."""
    _print_ends(report)
    rows = [("all", report), *report["by_kind"].items()]
    output.print_table(COLUMNS, [_format_row(name, row) for name, row in rows], "nothing ran")
    output.say()
    if report["wait_s"] is not None:
        output.say(
            f"{report['programs_per_s']:.2f} programs and {report['tokens_per_s']:.0f} tokens a"
            f" second. The longest wait for the start took {report['wait_s']['max']:.2f} s."
        )
    _print_order(report)
    _print_deadlines(report)
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


def _print_ends(report: Mapping[str, Any]) -> None:
    parts = [f"{report['finished']:,} of {format_count(report['programs'], 'program')} finished"]
    if report["refused"]:
        parts.append(f"{report['refused']:,} were refused because the queue was full")
    if report["failed"]:
        parts.append(f"{report['failed']:,} failed")
    output.say(", ".join(parts))
    for error, count in list(report["errors"].items())[:3]:
        output.note(f"{count} times: {error}")


def _print_order(report: Mapping[str, Any]) -> None:
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


def _print_deadlines(report: Mapping[str, Any]) -> None:
    slo = report["slo"]
    if report["attainment"] is None:
        return
    base = ", ".join(f"{kind} {seconds:g} s" for kind, seconds in slo["base_s"].items())
    output.say(
        f"Deadlines: {base}, times {slo['scale']:g}, times the problem's difficulty. It is known"
        f" for {slo['known_difficulties']} of {format_count(slo['problems'], 'problem')}; the"
        f" others count {slo['factor_if_unknown']:g}."
    )
    output.say(f"{report['goodput_per_s'] or 0:.2f} programs a second met their deadline.")
    if report["least_scale"] is None:
        output.say("No SLO scale lets 90 % of the programs meet their deadline.")
    else:
        output.say(f"90 % would meet it at an SLO scale of {report['least_scale']:.2f} or more.")


def _format_row(name: str, row: Mapping[str, Any]) -> tuple[object, ...]:
    times = [
        _format_seconds(row[figure], part)
        for figure, parts in (
            ("per_token_s", ("mean", "p90")),
            ("ttft_s", ("p50", "p90", "p99")),
            ("latency_s", ("p50", "p90", "p99")),
        )
        for part in parts
    ]
    return (
        name,
        row["programs"],
        *times,
        _format_share(row["attainment"]),
        _format_share(row["accuracy"]),
    )


def _format_seconds(values: Mapping[str, float] | None, part: str) -> str | None:
    return None if values is None else f"{values[part]:.3g}"


def _format_share(share: float | None) -> str | None:
    return None if share is None else f"{share:.0%}"
