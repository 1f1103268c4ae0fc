"""The linear correlation, for the studies."""

import math
from collections.abc import Sequence

from scripts.lab.statistics import mean


def pearson(left: Sequence[float], right: Sequence[float]) -> float:
    """Linear correlation; NaN when one side is constant."""
    a, b = mean(left), mean(right)
    covariance = math.fsum((x - a) * (y - b) for x, y in zip(left, right, strict=True))
    spread = math.fsum((x - a) ** 2 for x in left) * math.fsum((y - b) ** 2 for y in right)
    return covariance / math.sqrt(spread) if spread > 0 else math.nan
