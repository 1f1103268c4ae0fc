"""The programs of `ps`: what runs, what waits, and when each is expected to start."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from flashedge.cli import output
from flashedge.cli.run_ids import shorten_ids
from flashedge.client.words import format_count, format_duration

COLUMNS = ("place", "program", "client", "kind", "waited", "median", "tail", "starts in")
LONGEST_KEY = 16
"""Cells of a program's name on a terminal. Users may give it 200."""


def print_programs(programs: Sequence[Mapping[str, Any]]) -> None:
    """Print a table of the standings, which are in their order. There must be one."""
    output.say("\nprograms (median and tail: predicted tokens of one answer or path)")
    names = shorten_keys([str(program["key"]) for program in programs])
    rows = [_format_row(*item) for item in zip(names, programs, strict=True)]
    output.print_lines(COLUMNS, rows, "no programs")


def print_boosts(boosts: Sequence[Mapping[str, Any]]) -> None:
    """Print how many rollouts each boosted run may have in flight. There must be one."""
    for station in boosts:
        granted: Mapping[str, int] = station["runs"]
        budget = format_count(station["budget"], "rollout")
        output.say(f"\nboosted runs: {sum(granted.values())} of {budget} ({station['reason']})")
        names = shorten_ids(list(granted))
        rows = list(zip(names, granted.values(), strict=True))
        output.print_lines(("run", "rollouts"), rows, "no runs")


def shorten_keys(keys: Sequence[str]) -> list[str]:
    """Names for a terminal: ids of runs as `runs ls` shortens them, other long names cut."""
    ids = [key for key in keys if key.startswith("run-")]
    short = dict(zip(ids, shorten_ids(ids), strict=True))
    names = [short.get(key, key) for key in keys]
    if not output.stdout().is_terminal:
        return names
    return [name if len(name) <= LONGEST_KEY else f"{name[: LONGEST_KEY - 1]}…" for name in names]


def _format_row(name: str, program: Mapping[str, Any]) -> tuple[object, ...]:
    start_s = program.get("starts_in_s")
    return (
        _format_place(program),
        name,
        program.get("client") or None,
        program.get("kind"),
        format_duration(program.get("waited_s") or 0.0),
        _format_tokens(program.get("median_tokens")),
        _format_tokens(program.get("tail_tokens")),
        None if start_s is None else f"~{format_duration(start_s)}",
    )


def _format_place(program: Mapping[str, Any]) -> str:
    """`#1` in the queue, `runs`, or `open` for a request that the engines have not answered yet."""
    place = program.get("place")
    if place is not None:
        return f"#{place + 1}"
    return "runs" if program.get("has_started") else "open"


def _format_tokens(tokens: float | None) -> str | None:
    return None if tokens is None else f"{tokens:,.0f}"
