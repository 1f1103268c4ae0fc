"""How sure a vote is: the chance that more paths would not change its winner.

Needs no calibration, since it looks at the counts alone.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable


def measure_majority(clusters: Iterable[str | None]) -> float | None:
    """Return the chance that the most frequent answer is likelier than the second, in [0.5, 1).

    Of v paths that gave the first answer and w that gave the second, the share of the first has the
    distribution Beta(v + 1, w + 1) where all shares were equally likely before. The chance is its
    part above one half: a binomial sum.

    clusters: (num_paths,) cluster of each finished path. A path without an answer does not vote.
    Returns None when no path has an answer.
    Ref: arXiv 2305.11860 §3 (the Beta criterion of adaptive consistency).
    """
    counts = [count for _, count in Counter(c for c in clusters if c is not None).most_common(2)]
    if not counts:
        return None
    first, second = (*counts, 0)[:2]
    trials = first + second + 1
    return sum(math.comb(trials, i) for i in range(first + 1)) / (1 << trials)
