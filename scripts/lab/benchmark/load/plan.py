"""What arrives in a load: each program's kind, client, problem and seed, drawn beforehand.

Arrival times, kinds, clients and problems are drawn independently of each other from one seed. So
two policies get the same programs at the same times, and a change of the mix moves no arrival.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import isclose
from random import Random

from flashedge.errors import RequestError
from flashedge.scheduling.programs.program import Kind
from scripts.lab.benchmark.load.arrivals import Arrivals

Mix = Mapping[Kind, float]
"""The share of each kind among the programs. The shares sum to 1."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedProgram:
    """One program of a load."""

    number: int
    """Its place in the order of arrival, from 0."""

    arrived_s: float
    """When it arrives, in seconds since the load's start."""

    kind: Kind
    client: str

    problem: int
    """Index of its problem."""

    seed: int


def plan_programs(
    arrivals: Arrivals,
    mix: Mix,
    *,
    duration_s: float,
    problems: int,
    clients: int = 1,
    seed: int = 0,
) -> tuple[PlannedProgram, ...]:
    """Draw the programs of a load, in the order of arrival.

    duration_s: how long programs arrive; problems, clients: how many there are.
    """
    times = arrivals.draw(duration_s, Random(f"{seed} arrivals"))
    kinds, asks, askers = (Random(f"{seed} {what}") for what in ("kinds", "problems", "clients"))
    known = sorted(mix)
    return tuple(
        PlannedProgram(
            number=number,
            arrived_s=at,
            kind=kinds.choices(known, [mix[kind] for kind in known])[0],
            client=f"client-{askers.randrange(clients)}",
            problem=asks.randrange(problems),
            seed=seed + number,
        )
        for number, at in enumerate(times)
    )


def parse_mix(text: str) -> Mix:
    """{chat: 0.5, search: 0.5} of "chat=0.5,search=0.5". Raises RequestError."""
    shares = parse_by_kind("--mix", text)
    if not isclose(sum(shares.values()), 1.0, abs_tol=1e-6):
        raise RequestError(
            f"the shares of --mix {text!r} sum to {sum(shares.values()):g}, not to 1",
            hint="for example --mix chat=0.5,search=0.5",
            param="mix",
        )
    return shares


def parse_by_kind(flag: str, text: str) -> dict[Kind, float]:
    """Positive numbers by kind, of "chat=2,search=30". Raises RequestError."""
    found: dict[Kind, float] = {}
    for part in text.split(","):
        name, _, value = (piece.strip() for piece in part.partition("="))
        try:
            kind, number = Kind(name), float(value)
        except ValueError:
            kind, number = None, 0.0
        if kind is None or kind in found or not 0 < number < float("inf"):
            known = ", ".join(Kind)
            raise RequestError(
                f"{flag} {text!r}: {part.strip()!r} is not KIND=NUMBER",
                hint=f"kinds are {known}, each once; for example {flag} chat=0.5,search=0.5",
                param=flag.strip("-"),
            )
        found[kind] = number
    return found
