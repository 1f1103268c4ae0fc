"""Certainty of searches with a verifier: the rewards of their finished paths.

A reward is a path's score on the scale of one step's score (`search.scoring.score_per_step`). The
thresholds of the paper are on that scale; a product of step scores would shrink with every step.
"""

from __future__ import annotations

import math
from collections.abc import Iterable


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
