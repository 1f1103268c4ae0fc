"""The stopping rule with a proof: the distribution of the answers of k probes stops moving.

At useful accuracies the rule needs hundreds to thousands of probes (`min_probes`), so it never
fires on chains of ordinary length. It serves as an option and a yardstick.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence


def failure_bound(k: int, *, epsilon: float, num_groups: int) -> float:
    """An upper bound of the chance that one of the 2k estimates is off by > epsilon/3.

    2k * 2^(M+1) * exp(-k' e'^2 / 2) with e' = epsilon/3 and k' = k - 1, the smaller of the two
    window lengths. Ref: arXiv 2412.20993 App. E, Lemma 1.
    """
    exponent = (num_groups + 1) * math.log(2) - (k - 1) * (epsilon / 3) ** 2 / 2
    return math.exp(min(700.0, math.log(2 * k) + exponent))


def min_probes(*, epsilon: float, delta: float, num_groups: int) -> int:
    """The least k from which on `failure_bound` is at most delta.

    The paper gives k up to logarithms; this solves its last inequality exactly. num_groups: M, the
    number of distinct answers. Raises ValueError outside 0 < epsilon, delta < 1 and M >= 1.
    """
    if not (0 < epsilon < 1 and 0 < delta < 1 and num_groups >= 1):
        raise ValueError(f"epsilon {epsilon}, delta {delta}, num_groups {num_groups}")
    # The bound rises up to k = 2/e'^2 and falls after it. Search the falling side.
    low = max(2, math.ceil(2 / (epsilon / 3) ** 2))
    high = low
    while failure_bound(high, epsilon=epsilon, num_groups=num_groups) > delta:
        low, high = high, 2 * high
    while low < high:
        middle = (low + high) // 2
        if failure_bound(middle, epsilon=epsilon, num_groups=num_groups) > delta:
            low = middle + 1
        else:
            high = middle
    return high


def total_variation(p: Sequence[str | None], q: Sequence[str | None]) -> float:
    """Half the L1 distance of two empirical distributions, in [0, 1]."""
    left, right = Counter(p), Counter(q)
    return 0.5 * math.fsum(abs(left[a] / len(p) - right[a] / len(q)) for a in left | right)


def has_settled(answers: Sequence[str | None], k: int, *, epsilon: float) -> bool:
    """Whether the last 2k probes meet the rule.

    A window of k probes, moved by up to k probes, must differ from the first window by at most
    epsilon/3, and so must a window of k - 1. answers: (num_probes,); None is an answer like any
    other. Ref: arXiv 2412.20993 App. E, Definition 2 and the test below it.
    """
    if k < 2 or len(answers) < 2 * k:
        return False
    last = answers[-2 * k :]
    return all(
        total_variation(last[:size], last[j : j + size]) <= epsilon / 3
        for size in (k, k - 1)
        for j in range(1, size + 1)
    )
