"""Which share of the programs meets its deadline, against the rate of arrivals and the SLO scale.

Programs that were refused or failed have missed theirs.

Ref: arXiv 2412.20993 §4.2, Fig. 8, App. F.2.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import ceil

from scripts.lab.benchmark.load.record import End, ProgramRecord
from scripts.lab.benchmark.load.slo import Slo

TARGET = 0.9
"""The paper's P90 deadline attainment."""

SCALES = (0.25, 0.35, 0.5, 0.7, 1.0, 1.4, 2.0, 2.8, 4.0)
Points = Sequence[tuple[float, float]]
"""(rate or scale, attainment), in the order of the first."""


def list_needed_scales(records: Iterable[ProgramRecord], slo: Slo) -> list[float]:
    """For each program with a deadline, the least SLO scale at which it would have met it.

    Infinite for a program without a result. The scale of `slo` itself does not matter.
    """
    needed = []
    for record in records:
        deadline_s = slo.compute_deadline(record.kind, record.problem)
        if deadline_s is None:
            continue
        done = record.end is End.FINISHED and record.latency_s is not None
        needed.append(
            slo.scale * record.latency_s / deadline_s
            if done and record.latency_s is not None
            else float("inf")
        )
    return needed


def compute_attainment(needed: Sequence[float], scale: float) -> float | None:
    """The share that meets its deadline at this scale. None without a program with a deadline."""
    return sum(one <= scale for one in needed) / len(needed) if needed else None


def list_scale_curve(
    needed: Sequence[float], scales: Sequence[float] = SCALES
) -> list[tuple[float, float]]:
    """(scale, attainment) points."""
    points = ((scale, compute_attainment(needed, scale)) for scale in scales)
    return [(scale, share) for scale, share in points if share is not None]


def find_least_scale(needed: Sequence[float], target: float = TARGET) -> float:
    """The strictest scale with this attainment. Infinite if there is none, NaN without
    deadlines."""
    if not needed:
        return float("nan")
    count = max(1, ceil(target * len(needed) - 1e-9))
    return sorted(needed)[count - 1]


def find_highest_rate(points: Points, target: float = TARGET) -> float:
    """The highest rate up to which the attainment is at least the target.

    points: (rate, attainment) from the lowest rate on. Between two rates it is interpolated. 0 if
    the lowest rate misses the target already; the highest rate measured if none misses it.
    """
    last: tuple[float, float] | None = None
    for rate, share in points:
        if share < target:
            if last is None:
                return 0.0
            return last[0] + (rate - last[0]) * (last[1] - target) / (last[1] - share)
        last = rate, share
    return last[0] if last else 0.0
