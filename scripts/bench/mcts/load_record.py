"""What became of a load of searches, simulated or on real engines, and when its searches arrive."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from random import Random
from statistics import fmean
from typing import Any, Self


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchRecord:
    """What became of one search of a load."""

    problem: int
    arrived_s: float
    wait_s: float
    latency_s: float
    tokens: int
    """Generated tokens, those of cancelled nodes included."""
    right: bool
    cut_by: str | None
    unlikely: bool
    rollouts: int
    boosts: int
    """How often it was given more rollouts than one."""
    cancelled_tokens: int
    answer: str | None = None
    """Known of searches on real engines."""

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Self:
        return cls(**data)


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadRecord:
    """What became of a load."""

    searches: tuple[SearchRecord, ...]
    """In the order of arrival."""
    makespan_s: float
    busy_share: float
    """Share of the time in which the (generator's) device computed."""
    boosted_share: float
    """Share of the time with runs in which the gate let more than one rollout each through."""
    missed_share: float
    """Share of the expansions that no recorded tree held."""
    preemptions: int

    def to_json(self) -> dict[str, Any]:
        return {**asdict(self), "searches": [one.to_json() for one in self.searches]}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Self:
        searches = tuple(SearchRecord.from_json(one) for one in data["searches"])
        return cls(**{**data, "searches": searches})


def join(turns: Sequence[LoadRecord]) -> LoadRecord:
    """Several turns at one load as one record."""
    return LoadRecord(
        searches=tuple(search for turn in turns for search in turn.searches),
        makespan_s=sum(turn.makespan_s for turn in turns),
        busy_share=fmean(turn.busy_share for turn in turns),
        boosted_share=fmean(turn.boosted_share for turn in turns),
        missed_share=fmean(turn.missed_share for turn in turns),
        preemptions=sum(turn.preemptions for turn in turns),
    )


def draw_times(count: int, rate: float, seed: int) -> list[float]:
    """Poisson arrivals. Other rates have the same ones, closer together."""
    draw, now_s, times = Random(f"{seed} arrivals"), 0.0, []
    for _ in range(count):
        now_s += draw.expovariate(1.0)
        times.append(now_s / rate if rate else 0.0)
    return times
