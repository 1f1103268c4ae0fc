"""The measure of the benchmarks."""

from __future__ import annotations

from collections.abc import Collection

from flashedge.statistics import mean


def goodput(tokens: Collection[int], done_s: Collection[float]) -> float:
    """Mean tokens of a completed path over mean seconds to its completion; 0 without one.

    Ref: arXiv 2509.00195 §6.1.
    """
    if not tokens or not any(done_s):
        return 0.0
    return mean(list(tokens)) / mean(list(done_s))
