"""Positive exit: the search ends once a path that ended is good enough.

Off unless `Exits.positive_exit`. The other positive exit is a policy: see `certainty.policies`.
Ref: arXiv 2604.00510 §3.1 (positive early exit).
"""

from __future__ import annotations

REWARD = "reward"
"""The `cut_by` of a search that this exit ended."""


def is_good_enough(best_reward: float, accept: float) -> bool:
    """best_reward: the largest of the paths that ended."""
    return best_reward >= accept
