"""What arrives in a load, and when: at random, in a burst, or as a file says.

Arrivals never wait for the programs before them (an open loop), so a slow server gets no relief.
Arrival times, kinds, clients and problems are drawn independently of each other from one seed. So
two policies get the same programs at the same times, and a change of the mix moves no arrival.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import takewhile
from math import isclose, isfinite, nan
from pathlib import Path
from random import Random

from flashedge.errors import ConfigError, RequestError
from flashedge.scheduling.programs.program import Kind

POISSON, BURSTY = "poisson", "bursty"
_HINT = "each line is a number of seconds since the load's start"


@dataclass(frozen=True, slots=True, kw_only=True)
class PoissonArrivals:
    """Programs that arrive independently of each other. Ref: arXiv 2412.20993 App. F.2."""

    rate: float
    """Programs a second."""

    def draw(self, duration_s: float, draw: Random) -> tuple[float, ...]:
        """The arrival times in [0, duration_s), in order, in seconds."""
        return tuple(takewhile(lambda at: at < duration_s, _draw_times(self.rate, draw)))


@dataclass(frozen=True, slots=True, kw_only=True)
class BurstyArrivals:
    """Independent arrivals whose rate is multiplied for a while."""

    rate: float
    """Programs a second outside the burst."""
    factor: float = 3.0
    """How many times as many arrive in the burst."""
    start: float = 0.4
    """Where the burst starts, as a share of the duration."""
    length: float = 0.2
    """How long it lasts, as a share of the duration."""

    def draw(self, duration_s: float, draw: Random) -> tuple[float, ...]:
        """Draw at an even rate, in a time that passes `factor` times as fast in the burst."""
        starts_s = self.start * duration_s
        lasts_s = min(self.length, 1.0 - self.start) * duration_s

        def undo(even_s: float) -> float:
            within_s = min(max(even_s - starts_s, 0.0), self.factor * lasts_s)
            return even_s - within_s + within_s / self.factor

        even = _draw_times(self.rate, draw)
        return tuple(takewhile(lambda at: at < duration_s, map(undo, even)))


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedArrivals:
    """Arrivals at given times, in order."""

    times_s: tuple[float, ...]

    def draw(self, duration_s: float, draw: Random) -> tuple[float, ...]:
        return tuple(takewhile(lambda at: at < duration_s, self.times_s))


Arrivals = PoissonArrivals | BurstyArrivals | RecordedArrivals


def read_arrivals(path: Path) -> RecordedArrivals:
    """Read a file of seconds since the load's start, one number a line.

    Blank lines and lines that begin with # are skipped. Raises ConfigError naming the line.
    """
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "not UTF-8 text"
        raise ConfigError(f"can't read {path}: {reason}", param="arrivals") from error
    times: list[float] = []
    for number, line in enumerate(lines, start=1):
        text = line.strip()
        if not text or text.startswith("#"):
            continue
        try:
            seconds = float(text)
        except ValueError:
            seconds = nan
        if not (isfinite(seconds) and seconds >= 0):
            where = f"{path}, line {number}"
            raise ConfigError(f"{where}: {text!r} is no time", hint=_HINT, param="arrivals")
        times.append(seconds)
    if not times:
        raise ConfigError(f"{path} holds no arrival time", hint=_HINT, param="arrivals")
    return RecordedArrivals(times_s=tuple(sorted(times)))


def choose_arrivals(name: str, rate: float | None) -> Arrivals:
    """The process named poisson or bursty, or else of a file. Raises ConfigError, RequestError."""
    if name not in (POISSON, BURSTY):
        if rate is not None:
            raise RequestError(
                "--rate and a file of arrival times contradict each other",
                hint=f"leave --rate out, or give --arrivals {POISSON}",
                param="rate",
            )
        return read_arrivals(Path(name))
    if rate is None or not (isfinite(rate) and rate > 0):
        raise RequestError(
            "there is no rate of arrivals" if rate is None else f"the rate is {rate}",
            hint="give the programs a second: --rate 2",
            param="rate",
        )
    return PoissonArrivals(rate=rate) if name == POISSON else BurstyArrivals(rate=rate)


def _draw_times(rate: float, draw: Random) -> Iterator[float]:
    """The times of an endless Poisson process."""
    now_s = 0.0
    while True:
        now_s += draw.expovariate(rate)
        yield now_s


Mix = Mapping[Kind, float]
"""The share of each kind among the programs. The shares sum to 1."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedProgram:
    """One program of a load."""

    number: int
    """Its place in the order of arrival, from 0."""
    arrived_s: float
    """Seconds since the load's start."""
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
    """Draw the programs of a load, in the order of arrival. problems, clients: how many."""
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
