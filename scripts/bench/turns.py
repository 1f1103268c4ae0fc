"""Ways to do the same work that take turns, so that a machine's changes meet all of them."""

from collections.abc import Mapping, Sequence
from typing import Protocol, TypeVar

from scripts.lab.statistics import bootstrap

T = TypeVar("T")


class Timed(Protocol):
    """What was measured of one way."""

    @property
    def seconds(self) -> float: ...


def rotate(ways: Sequence[T], turn: int) -> list[T]:
    """The order of this turn: it begins one way later than that of the turn before."""
    first = turn % len(ways)
    return [*ways[first:], *ways[:first]]


def compare_seconds(rows: Sequence[Mapping[str, Timed]], way: str, base: str) -> list[float]:
    """Seconds of a way relative to another, summed over rows: the ratio and its 95 % interval.

    rows: for each piece of work, what was measured, by way.
    """

    def ratio(of: Sequence[Mapping[str, Timed]]) -> float:
        return sum(row[way].seconds for row in of) / sum(row[base].seconds for row in of)

    return [ratio(rows), *bootstrap(rows, ratio)]
