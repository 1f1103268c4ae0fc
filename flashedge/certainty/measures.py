"""The checkpoints of a run and their measures of certainty, of answers and of probes."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

ENTROPY, REWARD, CONSISTENCY = "entropy", "reward", "consistency"
TV = "tv"  # 1 when the rule of `has_settled` holds, else 0
LEAD = "lead"  # see `certainty.lead`
PROGRAM = "program"  # the certainty that a user's own program reports
MEASURES = (ENTROPY, REWARD, CONSISTENCY, TV, LEAD, PROGRAM)


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoint:
    """The measures of a run between two levels, rollouts or probes. Ref: arXiv 2412.20993 App.
    D.1."""

    progress: int
    """Finished paths, rollouts (MCTS) or probes (chain of thought) so far."""
    tokens: int
    answers: int
    """Paths (or probes) that have an answer."""
    measures: Mapping[str, float]
    """Measure name -> value in [0, 1]. A measure that is not defined here is missing."""
    answer: str | None = None

    @property
    def certainty(self) -> float | None:
        """The measure to display: the one over answers, if there is one."""
        for name in (CONSISTENCY, ENTROPY, PROGRAM):
            if name in self.measures:
                return self.measures[name]
        return None


History = tuple[Checkpoint, ...]


# ---------------------------------------------------------------- answers

HESITATIONS = ("wait", "hmm", "hold on", "actually", "not sure", "let me check", "let me re")
_HESITATES = re.compile(rf"\b(?:{'|'.join(HESITATIONS)})", re.IGNORECASE)


def measure_certainty(clusters: Iterable[str | None]) -> float | None:
    """(log n - H) / log n over answer clusters, in [0, 1]. It is 1 when all paths agree.

    clusters: (num_paths,) cluster of each finished path. A path without an answer is a cluster of
    its own. None when no path has an answer, and 0 for a single path. Ref: arXiv 2412.20993 §2.2
    (normalized semantic entropy).
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


# ---------------------------------------------------------------- probes


def hesitates(text: str) -> bool:
    """Whether a probe's text contains a word of doubt, so that its answer does not count. Ref:
    arXiv 2412.20993 §2.1. The paper names "wait" and "hmm"; the other words are ours."""
    return _HESITATES.search(text) is not None


def consistency(answers: Sequence[str | None], window: int) -> float | None:
    """C_k = 1/w * sum of [y_j = y_k] over the last w probes, in [0, 1].

    answers: (k,) clusters of the probed answers. None stands for a probe without a confident answer
    and equals nothing. None is returned until the window is full (k < w). Raises ValueError for a
    window below 1. Ref: arXiv 2412.20993 §2.1.
    """
    if window < 1:
        raise ValueError(f"window {window} is below 1")
    if len(answers) < window:
        return None
    newest = answers[-1]
    return sum(a is not None and a == newest for a in answers[-window:]) / window


def is_unsettled(answers: Sequence[str | None], *, after: int, below: float) -> bool:
    """Whether less than the share `below` of the last `after` probes agree on one answer.

    Ref: arXiv 2412.20993 §2.1 ("fail to converge after significant effort"); the formula is ours.
    """
    if len(answers) < after:
        return False
    counted = Counter(a for a in answers[-after:] if a is not None)
    most = max(counted.values(), default=0)
    return most < below * after


def pick_settled_answer(answers: Sequence[str | None], window: int) -> str | None:
    """The most frequent answer of the last `window` probes, the newest in a tie; of all probes if
    none of these has one."""
    for seen in (answers[-window:], answers):
        counted = Counter(a for a in seen if a is not None)
        if counted:
            most = max(counted.values())
            return next(a for a in reversed(seen) if a is not None and counted[a] == most)
    return None


# ---------------------------------------------------------------- the rule with a proof

# The distribution of the answers of k probes stops moving. At useful accuracies the rule needs
# hundreds to thousands of probes (`min_probes`), so it never fires on chains of ordinary length.
# It serves as an option and a yardstick.


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
