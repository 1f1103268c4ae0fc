"""What arrives in a load, and when: at random, in a burst, or as a file says.

Arrivals never wait for the programs before them (an open loop), so a slow server gets no relief.
Arrival times, kinds, clients and problems are drawn independently of each other from one seed. So
two policies get the same programs at the same times, and a change of the mix moves no arrival.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from itertools import accumulate, count, takewhile
from math import inf, isclose, nan
from pathlib import Path
from random import Random

from flashedge.errors import ConfigError, RequestError
from flashedge.scheduling.programs.program import Kind

POISSON, BURSTY = "poisson", "bursty"
_HINT = "each line is a number of seconds since the load's start"


BURST_FACTOR, BURST_START, BURST_LENGTH = 3.0, 0.4, 0.2
"""How many times as many programs arrive in the burst, where it starts and how long it lasts, both
as shares of the duration. Assumed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Arrivals:
    """When programs arrive: independently of each other, or at recorded times.

    Ref: arXiv 2412.20993 App. F.2.
    """

    rate: float = 0.0
    """Programs a second, outside of the burst."""
    is_bursty: bool = False
    times_s: tuple[float, ...] | None = None
    """Recorded times, in order. None draws them."""

    def draw(self, duration_s: float, draw: Random) -> tuple[float, ...]:
        """The arrival times in [0, duration_s), in order, in seconds."""
        if self.times_s is not None:
            times = iter(self.times_s)
        else:
            times = accumulate(draw.expovariate(self.rate) for _ in count())
            if self.is_bursty:
                times = map(partial(_compress_burst, duration_s), times)
        return tuple(takewhile(lambda at: at < duration_s, times))


def _compress_burst(duration_s: float, even_s: float) -> float:
    """The time of an arrival that was drawn at an even rate, as if time had passed `BURST_FACTOR`
    times as fast in the burst."""
    lasts_s = BURST_FACTOR * (BURST_LENGTH * duration_s)
    within_s = min(max(even_s - BURST_START * duration_s, 0.0), lasts_s)
    return even_s - within_s + within_s / BURST_FACTOR


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
    if rate is None or not 0 < rate < inf:
        raise RequestError(
            "there is no rate of arrivals" if rate is None else f"the rate is {rate}",
            hint="give the programs a second: --rate 2",
            param="rate",
        )
    return Arrivals(rate=rate, is_bursty=name == BURSTY)


def read_arrivals(path: Path) -> Arrivals:
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
        if not 0 <= seconds < inf:
            where = f"{path}, line {number}"
            raise ConfigError(f"{where}: {text!r} is no time", hint=_HINT, param="arrivals")
        times.append(seconds)
    if not times:
        raise ConfigError(f"{path} holds no arrival time", hint=_HINT, param="arrivals")
    return Arrivals(times_s=tuple(sorted(times)))


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
    """Draw the programs of a load, in the order of arrival. problems, clients: their numbers."""
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
        if kind is None or kind in found or not 0 < number < inf:
            known = ", ".join(Kind)
            raise RequestError(
                f"{flag} {text!r}: {part.strip()!r} is not KIND=NUMBER",
                hint=f"kinds are {known}, each once; for example {flag} chat=0.5,search=0.5",
                param=flag.strip("-"),
            )
        found[kind] = number
    return found
