"""Certainty of a chain of thought: do its probed answers stay the same?"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence

HESITATIONS = ("wait", "hmm", "hold on", "actually", "not sure", "let me check", "let me re")
_HESITATES = re.compile(rf"\b(?:{'|'.join(HESITATIONS)})", re.IGNORECASE)


def hesitates(text: str) -> bool:
    """Whether a probe's text holds a word of doubt: its answer does not count.

    Ref: arXiv 2412.20993 §2.1 (post-generation validation; it names "wait" and "hmm", the other
    words are ours).
    """
    return _HESITATES.search(text) is not None


def consistency(answers: Sequence[str | None], window: int) -> float | None:
    """C_k = 1/w * sum of [y_j = y_k] over the last w probes, in [0, 1].

    answers: (k,) clusters of the probed answers in order, None for a probe without a confident
    answer, which equals nothing. None before the window is full (k < w). When the newest probe has
    no answer C_k is 0. Ref: arXiv 2412.20993 §2.1. Raises ValueError for a window below 1.
    """
    if window < 1:
        raise ValueError(f"window {window} is below 1")
    if len(answers) < window:
        return None
    newest = answers[-1]
    return sum(a is not None and a == newest for a in answers[-window:]) / window


def unsettled(answers: Sequence[str | None], *, after: int, below: float) -> bool:
    """Whether a chain shows no sign of settling: exit on non-convergence.

    True when, of the last `after` probes, less than the share `below` gave the most frequent
    answer. Ref: arXiv 2412.20993 §2.1 ("remain highly varied or fail to converge after significant
    effort"); the paper gives no formula, this one is ours.
    """
    if len(answers) < after:
        return False
    counted = Counter(a for a in answers[-after:] if a is not None)
    most = max(counted.values(), default=0)
    return most < below * after


def settled_answer(answers: Sequence[str | None], window: int) -> str | None:
    """The most frequent answer of the last `window` probes, ties to the newest; of all probes
    when those have none."""
    for seen in (answers[-window:], answers):
        counted = Counter(a for a in seen if a is not None)
        if counted:
            most = max(counted.values())
            return next(a for a in reversed(seen) if a is not None and counted[a] == most)
    return None
