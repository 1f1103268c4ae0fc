"""What a user may know of a program: its place, how long it will be, and when it starts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from flashedge.scheduling.programs.program import Program
from flashedge.scheduling.programs.work import estimate_work, find_figures


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """One program, as things stand."""

    key: str
    client: str
    kind: str
    place: int
    """Programs that go before it."""

    has_started: bool
    waited_s: float
    median_tokens: float | None
    """Predicted length of one of its outputs. None until it is predicted."""

    tail_tokens: float | None
    """The length that a tenth of its outputs exceeds, as predicted (value at risk)."""

    left_tokens: float
    """What it is expected to generate yet, all outputs together."""

    starts_in_s: float | None
    """When it is expected to start. None where it has, or where nothing was measured yet."""


def find_standings(
    programs: Sequence[Program], now_s: float, tokens_per_s: float | None
) -> list[Standing]:
    """The standings of programs, which are given in their order.

    A program is expected to start when the work before it is done, at the rate that was measured.
    That is late rather than early: several programs run at once.
    """
    found: list[Standing] = []
    before = 0.0
    for place, program in enumerate(programs):
        left = estimate_work(program).expected
        one = None
        if program.lengths is not None:
            one = find_figures(program.lengths, program.max_tokens, 0)
        starts_in_s = None
        if program.started_s is None and tokens_per_s:
            starts_in_s = before / tokens_per_s
        found.append(
            Standing(
                key=program.key,
                client=program.client,
                kind=str(program.kind),
                place=place,
                has_started=program.started_s is not None,
                waited_s=max(0.0, (program.started_s or now_s) - program.arrived_s),
                median_tokens=None if one is None else one.median,
                tail_tokens=None if one is None else one.value_at_risk,
                left_tokens=left,
                starts_in_s=starts_in_s,
            )
        )
        before += left
    return found
