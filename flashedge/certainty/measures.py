"""Measures of certainty: of answers that were grouped, of rewards, and of the probes of a chain."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterable, Sequence

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


# ---------------------------------------------------------------- rewards

# A reward is a path's score on the scale of one step's score (`aggregates.score_per_step`). The
# thresholds of the paper are on that scale; a product of step scores would shrink with every step.


def mean_reward(rewards: Iterable[float]) -> float | None:
    """Return the mean, which MCTS uses. rewards: (num_finished,) in [0, 1]. None without any.

    Ref: arXiv 2412.20993 §3.1, App. B.1.
    """
    values = list(rewards)
    return math.fsum(values) / len(values) if values else None


def max_reward(rewards: Iterable[float]) -> float | None:
    """Return the maximum, which REBASE and all other searches with a verifier use. None without
    any reward.

    Ref: arXiv 2412.20993 §3.1, App. B.1. The paper does not cover beam search and best-of-n.
    """
    return max(rewards, default=None)


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
