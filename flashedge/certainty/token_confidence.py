"""How sure a model is of the tokens that it draws, and of a path made of them.

The confidence of a token is the negative mean of the log-probabilities of the likeliest tokens. It
is high where the distribution has one peak: then the others are very improbable. Where all of them
are equally likely, it is the logarithm of their number. A group is a window of consecutive tokens,
one for each token at which a window ends. Ref: arXiv 2508.15260 §2, §3.1. As in its published code,
a path that is shorter than the window is one group.

A grammar gives the tokens that it forbids the log-probability -inf. They are left out. Where it
allows one token alone, the model has no choice: the confidence is 0, which no other token has, and
the token is in no group.
"""

import math
from collections.abc import Sequence
from itertools import accumulate

from flashedge.types import ConfidenceRule

LOWEST, BOTTOM, TAIL, MEAN = "lowest", "bottom", "tail", "mean"
MEANS = (LOWEST, BOTTOM, TAIL, MEAN)
"""How the tokens' confidences become that of a path: the lowest of its groups, the mean of the
lowest tenth of its groups, that of its last window, or the mean of all tokens."""


def measure_confidence(likeliest: Sequence[float]) -> float:
    """Confidence of one token, >= 0. likeliest: log-probabilities of the k likeliest tokens."""
    allowed = [value for value in likeliest if value > -math.inf]
    return -math.fsum(allowed) / len(allowed) if len(allowed) > 1 else 0.0


def measure_path(confidences: Sequence[float], window: int, by: str) -> float:
    """Confidence of a path, 0 for one without tokens. confidences: (num_tokens,). by: one of
    MEANS."""
    confidences = [value for value in confidences if value]
    size = len(confidences) if by == MEAN else min(window, len(confidences))
    if not size:
        return 0.0
    sums = list(accumulate(confidences, initial=0.0))
    groups = [_average(sums, end, size) for end in range(size, len(sums))]
    if by == TAIL:
        return groups[-1]
    if by == BOTTOM:
        lowest = sorted(groups)[: max(1, len(groups) // 10)]
        return math.fsum(lowest) / len(lowest)
    return min(groups)


def falls_below(sums: Sequence[float], rule: ConfidenceRule) -> bool:
    """Whether a path ends with its last token: its last window is whole and below the rule's
    threshold. sums: (num_tokens + 1,) sums of the confidences of the first tokens, from 0 on,
    without tokens of confidence 0. A path that ends so is below the threshold by LOWEST, since both
    compute the same numbers."""
    end = len(sums) - 1
    return end >= rule.window and _average(sums, end, rule.window) < rule.least


def _average(sums: Sequence[float], end: int, size: int) -> float:
    return (sums[end] - sums[end - size]) / size


def find_threshold(confidences: Sequence[float], keep: float) -> float:
    """The least confidence of the share `keep` of some paths that are surest: their percentile
    100 * (1 - keep), between two of them by a straight line. confidences: at least one."""
    ranked = sorted(confidences)
    at = (1.0 - keep) * (len(ranked) - 1)
    low = min(int(at), len(ranked) - 1)
    high = min(low + 1, len(ranked) - 1)
    return ranked[low] + (at - low) * (ranked[high] - ranked[low])
