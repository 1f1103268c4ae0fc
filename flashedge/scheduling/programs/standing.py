"""What a user may know of a program: its place, how long it will be, and when it starts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from flashedge.scheduling.programs.program import Program
from flashedge.scheduling.programs.work import Work, find_figures


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """One program, as things stand."""

    pair: str
    """The pair whose engines it uses."""

    key: str
    client: str
    kind: str
    place: int | None
    """Programs in the queue that go before it. None where it is not in the queue: it has started,
    or is a plain request, which the engines take as soon as they have room."""

    has_started: bool
    """Whether a search of it runs, or the first output of a request has come."""

    waited_s: float
    """From its arrival to its start, or until now."""

    median_tokens: float | None
    """Predicted length of one of its outputs. None until it is predicted."""

    tail_tokens: float | None
    """The length that a tenth of its outputs exceeds, as predicted (value at risk)."""

    left_tokens: float
    """What it is expected to generate yet, all outputs together."""

    starts_in_s: float | None
    """When its first run is expected to start. None where it is not in the queue, or where that is
    not known."""


def predict_output(program: Program) -> tuple[float | None, float | None]:
    """Median and tail of one output's tokens, as in `Standing`. None until they are predicted."""
    if program.lengths is None:
        return None, None
    one = find_figures(program.lengths, program.max_tokens, 0)
    return one.median, one.value_at_risk


def find_standings(
    pair: str,
    programs: Sequence[tuple[Program, Work]],
    now_s: float,
    queued: Mapping[str, float | None],
) -> list[Standing]:
    """Find the standings of a pair's programs, given in their order, each with what it has left.

    queued: by the keys of the programs that have a run in the queue, the seconds until it starts,
    or None where that is not known.
    """
    found: list[Standing] = []
    before = 0
    for program, work in programs:
        has_started = program.started_s is not None
        is_queued = not has_started and program.key in queued
        median, tail = predict_output(program)
        found.append(
            Standing(
                pair=pair,
                key=program.key,
                client=program.client,
                kind=str(program.kind),
                place=before if is_queued else None,
                has_started=has_started,
                waited_s=max(0.0, _find_end_of_wait(program, now_s) - program.arrived_s),
                median_tokens=median,
                tail_tokens=tail,
                left_tokens=work.expected,
                starts_in_s=queued[program.key] if is_queued else None,
            )
        )
        before += is_queued
    return found


def _find_end_of_wait(program: Program, now_s: float) -> float:
    return now_s if program.started_s is None else program.started_s
