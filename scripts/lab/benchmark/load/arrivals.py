"""When programs arrive: at random, in a burst, or as a file says.

Arrivals never wait for the programs before them (an open loop), so a slow server gets no relief.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import isfinite
from pathlib import Path
from random import Random
from typing import Protocol

from flashedge.errors import ConfigError, RequestError

POISSON, BURSTY = "poisson", "bursty"
BURST_FACTOR, BURST_START, BURST_LENGTH = 3.0, 0.4, 0.2


class Arrivals(Protocol):
    """A process that says when programs arrive."""

    def draw(self, duration_s: float, draw: Random) -> tuple[float, ...]:
        """The arrival times in [0, duration_s), in order, in seconds."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class PoissonArrivals:
    """Programs that arrive independently of each other. Ref: arXiv 2412.20993 App. F.2."""

    rate: float
    """Programs a second."""

    def draw(self, duration_s: float, draw: Random) -> tuple[float, ...]:
        return tuple(_list_below(duration_s, _draw_gaps(self.rate, draw)))


@dataclass(frozen=True, slots=True, kw_only=True)
class BurstyArrivals:
    """Independent arrivals whose rate is multiplied for a while."""

    rate: float
    """Programs a second outside the burst."""

    factor: float = BURST_FACTOR
    """How many times as many arrive in the burst."""

    start: float = BURST_START
    """Where the burst starts, as a share of the duration."""

    length: float = BURST_LENGTH
    """How long it lasts, as a share of the duration."""

    def draw(self, duration_s: float, draw: Random) -> tuple[float, ...]:
        """Draw at an even rate, in a time that passes `factor` times as fast in the burst."""
        starts_s = self.start * duration_s
        lasts_s = min(self.length, 1.0 - self.start) * duration_s

        def undo(even_s: float) -> float:
            within_s = min(max(even_s - starts_s, 0.0), self.factor * lasts_s)
            return even_s - within_s + within_s / self.factor

        even = _draw_gaps(self.rate, draw)
        return tuple(_list_below(duration_s, map(undo, even)))


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedArrivals:
    """Arrivals at given times."""

    times_s: tuple[float, ...]
    """In order."""

    def draw(self, duration_s: float, draw: Random) -> tuple[float, ...]:
        return tuple(_list_below(duration_s, iter(self.times_s)))


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
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        times.append(_parse_time(line.strip(), f"{path}, line {number}"))
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


_HINT = "each line is a number of seconds since the load's start"


def _parse_time(text: str, where: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = float("nan")
    if not (isfinite(seconds) and seconds >= 0):
        raise ConfigError(f"{where}: {text!r} is no time", hint=_HINT, param="arrivals")
    return seconds


def _draw_gaps(rate: float, draw: Random) -> Iterator[float]:
    """The times of an endless Poisson process."""
    now_s = 0.0
    while True:
        now_s += draw.expovariate(rate)
        yield now_s


def _list_below(duration_s: float, times: Iterator[float]) -> Iterator[float]:
    for at in times:
        if at >= duration_s:
            return
        yield at
