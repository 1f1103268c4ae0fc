"""The figure of merit of the benchmarks."""

from __future__ import annotations

from collections.abc import Collection

from flashedge.statistics import mean


def compute_goodput(tokens: Collection[int], done_s: Collection[float]) -> float:
    """Divide the mean tokens of a completed path by the mean seconds to its completion. 0 without
    a completed path.

    Ref: arXiv 2509.00195 §6.1.
    """
    if not tokens or not any(done_s):
        return 0.0
    return mean(list(tokens)) / mean(list(done_s))
