"""PUCT: the rule by which MCTS descends its tree, on plain numbers."""

from __future__ import annotations

import math
from collections.abc import Sequence

from flashedge.search.apportion import softmax
from flashedge.types import Segment


def puct(q: float, prior: float, *, visits: int, parent_visits: int, c: float) -> float:
    """Q + c * P * sqrt(Ñ(s)) / (1 + Ñ(s, a)). q, prior in [0, 1].

    visits, parent_visits: ended rollouts and those in flight (WU-PUCT), which makes a child less
    attractive that others are exploring already.

    Ref: arXiv 2604.00510 §4.2; Liu et al. 2018 (WU-UCT).
    """
    return q + c * prior * math.sqrt(parent_visits) / (1 + visits)


def logprob_priors(segments: Sequence[Segment]) -> tuple[float, ...]:
    """Softmax of the mean token log-probability of each child.

    segments: (k,) of the children -> (k,) priors with sum 1.

    Ref: arXiv 2604.00510 App. A ("the network's prior policy"). Departure: the mean, not the
    sum, which would favour short steps.
    """
    means = [math.fsum(s.logprobs) / max(1, len(s.logprobs)) for s in segments]
    return softmax(means, 1.0)


def uniform_priors(count: int) -> tuple[float, ...]:
    return (1.0 / count,) * count
