"""Turns the scores of a path's steps into one score of the path."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType

from flashedge.errors import RequestError

_AGGREGATES: Mapping[str, Callable[[Sequence[float]], float]] = MappingProxyType(
    {
        "last": lambda scores: scores[-1],
        "min": min,
        "prod": math.prod,
        "mean": lambda scores: math.fsum(scores) / len(scores),
    }
)
AGGREGATES = tuple(_AGGREGATES)


def aggregate(scores: Sequence[float], how: str) -> float:
    """scores: (num_steps,) in [0, 1], in the path's order -> one number in [0, 1].

    how: last, min, prod or mean. A path without a score gets 0. Raises RequestError.
    Ref: search-and-learn's `aggregate_scores` (mean is ours).
    """
    take = _AGGREGATES.get(how)
    if take is None:
        known = ", ".join(AGGREGATES)
        raise RequestError(f"no aggregate {how!r}; known: {known}", param="aggregate")
    return take(scores) if scores else 0.0


def score_per_step(scores: Sequence[float], how: str) -> float:
    """Return a path's score on the scale of one step's score, which certainty thresholds have.

    A product of step scores shrinks with every step; its place takes the geometric mean. The other
    aggregates are on that scale already. Shapes and Raises as `aggregate`.
    """
    score = aggregate(scores, how)
    return score ** (1 / len(scores)) if how == "prod" and scores else score
