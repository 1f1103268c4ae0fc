"""Negative exit, strict: the search ends once every leaf is futile.

A path's reward is the product, or the minimum, of its step scores. It only falls as the path grows,
so the reward of a leaf bounds everything below it: a leaf under the threshold is futile.

Off unless `Exits.negative_exit`. Departure: no exit before a path has ended, so that there is an
answer. Ref: arXiv 2604.00510 §3.4, §4.3.
"""

from __future__ import annotations

from flashedge.errors import RequestError

FUTILITY = "futility"
"""The `cut_by` of a search that ended because nothing that it could still find is good enough."""
BOUNDING = ("prod", "min")
"""The aggregates that bound what grows from a path."""


def is_futile(reward: float, threshold: float) -> bool:
    """reward: of the path to a leaf."""
    return reward < threshold


def check_aggregate(aggregate: str) -> None:
    """Raises RequestError for an aggregate under which a leaf bounds nothing below it."""
    if aggregate not in BOUNDING:
        raise RequestError(
            f"negative exits need an aggregate that only falls as a path grows, and {aggregate!r}"
            " can rise again: a leaf below the threshold could still become a good path",
            hint=f"set aggregate to {' or '.join(BOUNDING)}, or switch negative_exit,"
            " selective_exit and cut_rollouts off",
            param="aggregate",
        )
