"""Certainindex: one minus the normalized entropy of the answers so far."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable


def measure_certainty(clusters: Iterable[str | None]) -> float | None:
    """Return (log n - H) / log n over answer clusters, in [0, 1]. It is 1 when all paths agree.

    clusters: (num_paths,) cluster of each finished path. A path without an answer is a cluster of
    its own. Returns None when no path has an answer, and 0 for a single path.
    Ref: arXiv 2412.20993 §2.2 (normalized semantic entropy).
    """
    paths = list(clusters)
    if not any(c is not None for c in paths):
        return None
    n = len(paths)
    if n == 1:
        return 0.0
    groups = Counter(c for c in paths if c is not None)
    counts = [*groups.values(), *([1] * (n - groups.total()))]
    if len(counts) == 1:
        return 1.0
    entropy = -math.fsum(c / n * math.log(c / n) for c in counts)
    return max(0.0, (math.log(n) - entropy) / math.log(n))
