"""Figures of a pool of loads, and how they compare with another variant's on the same loads."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

from scripts.bench.mcts.load_record import LoadRecord, SearchRecord
from scripts.lab.statistics import bootstrap

Loads = Sequence[LoadRecord]
DRAWS = 2000


@dataclass(frozen=True, slots=True)
class Pool:
    """The loads of one variant, in the order of their seeds."""

    loads: Loads

    @property
    def searches(self) -> list[SearchRecord]:
        return [search for load in self.loads for search in load.searches]


def find_quantile(values: Sequence[float], share: float) -> float:
    """The least value that at least this share of the values do not exceed."""
    return sorted(values)[max(0, math.ceil(share * len(values)) - 1)]


def list_latencies(loads: Loads) -> list[float]:
    return [search.latency_s for load in loads for search in load.searches]


def measure(pool: Pool) -> dict[str, Any]:
    """The figures of one variant."""
    loads, searches = pool.loads, pool.searches
    latencies = list_latencies(loads)
    cut = [search.cut_by for search in searches]
    unlikely = [search for search in searches if search.unlikely]
    return {
        "searches": len(searches),
        "mean_s": fmean(latencies),
        "p50_s": find_quantile(latencies, 0.5),
        "p90_s": find_quantile(latencies, 0.9),
        "p95_s": find_quantile(latencies, 0.95),
        "p99_s": find_quantile(latencies, 0.99),
        "largest_s": max(latencies),
        "searches_per_s": _count_per_s(loads),
        "tokens": fmean(search.tokens for search in searches),
        "cancelled_tokens": fmean(search.cancelled_tokens for search in searches),
        "right": fmean(search.right for search in searches),
        "right_interval": bootstrap([float(s.right) for s in searches], fmean, draws=1000),
        "busy_share": fmean(load.busy_share for load in loads),
        "boosted_share": fmean(load.boosted_share for load in loads),
        "boosts": fmean(search.boosts for search in searches),
        "missed_share": fmean(load.missed_share for load in loads),
        "preemptions": sum(load.preemptions for load in loads),
        "cut_by": {str(reason): cut.count(reason) for reason in sorted(set(cut), key=str)},
        "unlikely": len(unlikely),
        "unlikely_right": sum(search.right for search in unlikely),
    }


def compare(
    pool: Pool, pools: Mapping[str, Pool], bases: Sequence[str], statistics: Sequence[str]
) -> dict[str, Any]:
    """Gains over other variants: how many times less time, or more searches a second. Each with its
    95 % interval, by bootstrap over loads. The first base is also compared in right answers.

    A bootstrap says nothing of a largest value, so none of p99 where there are 100 searches or
    fewer."""
    found: dict[str, Any] = {}
    for base in bases:
        for name in statistics:
            found[f"{name}_gain_over_{base}"] = _compare(pool, pools[base], _STATISTICS[name])
    found["right_difference"] = _compare(pool, pools[bases[0]], _count_right, is_ratio=False)
    return found


def _compare(
    ours: Pool, theirs: Pool, statistic: Callable[[Loads], float], *, is_ratio: bool = True
) -> tuple[float, float, float]:
    """(value, low, high) of theirs / ours, or of ours - theirs."""

    def difference(pairs: Sequence[tuple[LoadRecord, LoadRecord]]) -> float:
        mine, other = statistic([a for a, _ in pairs]), statistic([b for _, b in pairs])
        return other / mine if is_ratio else mine - other

    pairs = list(zip(ours.loads, theirs.loads, strict=True))
    return (difference(pairs), *bootstrap(pairs, difference, draws=DRAWS))


def _count_per_s(loads: Loads) -> float:
    return fmean(len(load.searches) / load.makespan_s for load in loads)


def _count_right(loads: Loads) -> float:
    return fmean(float(search.right) for load in loads for search in load.searches)


_STATISTICS: Mapping[str, Callable[[Loads], float]] = {
    "mean": lambda loads: fmean(list_latencies(loads)),
    "p50": lambda loads: find_quantile(list_latencies(loads), 0.5),
    "p90": lambda loads: find_quantile(list_latencies(loads), 0.9),
    "p95": lambda loads: find_quantile(list_latencies(loads), 0.95),
    "p99": lambda loads: find_quantile(list_latencies(loads), 0.99),
    "throughput": lambda loads: 1.0 / _count_per_s(loads),
}
