"""Certainty of searches with a verifier: the rewards of their finished paths, put together."""

from __future__ import annotations

import math
from collections.abc import Iterable


def mean_reward(rewards: Iterable[float]) -> float | None:
    """For MCTS. rewards: (num_finished,) in [0, 1], one a finished path; None without any.

    Ref: arXiv 2412.20993 §3.1, App. B.1.
    """
    taken = list(rewards)
    return math.fsum(taken) / len(taken) if taken else None


def max_reward(rewards: Iterable[float]) -> float | None:
    """For REBASE, and here for every other search that scores. Shapes as `mean_reward`.

    Ref: arXiv 2412.20993 §3.1, App. B.1. Departure: the paper says nothing of beam and best-of-n.
    """
    return max(rewards, default=None)
