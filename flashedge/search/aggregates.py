"""Checks the scores of steps, and turns the scores of a path's steps into one."""

import math
from collections.abc import Callable, Mapping, Sequence

from flashedge.errors import RequestError
from flashedge.search.tree import Node
from flashedge.types import Judges

_AGGREGATES: Mapping[str, Callable[[Sequence[float]], float]] = {
    "last": lambda scores: scores[-1],
    "min": min,
    "prod": math.prod,
    "mean": lambda scores: math.fsum(scores) / len(scores),
}
AGGREGATES = tuple(_AGGREGATES)


def aggregate(scores: Sequence[float], how: str) -> float:
    """scores: (num_steps,) in [0, 1], in the path's order -> one number in [0, 1]. how: last, min,
    prod or mean. Raises RequestError for any other. A path without a score gets 0. Ref:
    search-and-learn's `aggregate_scores` (mean is ours)."""
    take = _AGGREGATES.get(how)
    if take is None:
        known = ", ".join(AGGREGATES)
        raise RequestError(f"no aggregate {how!r}; known: {known}", param="aggregate")
    return take(scores) if scores else 0.0


def limit_score(scores: Sequence[float], how: str) -> float:
    """The best score that a path can get whose first steps have these scores."""
    return aggregate(scores, how) if scores and how in ("min", "prod") else 1.0


def check_scores(node: Node, scores: Sequence[float], judges: Judges) -> None:
    """Raises ValueError unless there is one finite score for each step of the node. If the verifier
    judges whole answers, there must be one score in all."""
    assert node.segment is not None, "a search scores generated nodes only"
    expected = 1 if judges == "answers" else len(node.segment.steps)
    if len(scores) != expected or not all(map(math.isfinite, scores)):
        what = "answer" if judges == "answers" else "steps"
        raise ValueError(f"node {node.id}: {expected} {what}, scores {scores}")


def score_per_step(scores: Sequence[float], how: str) -> float:
    """A path's score on the scale of one step's score, as certainty thresholds need it. A product
    shrinks with every step, so the geometric mean replaces it."""
    score = aggregate(scores, how)
    return score ** (1 / len(scores)) if how == "prod" and scores else score


def softmax(values: Sequence[float], temperature: float) -> tuple[float, ...]:
    """values: (k,), at least one -> (k,) shares with sum 1. temperature: positive."""
    top = max(values)
    powers = [math.exp((v - top) / temperature) for v in values]
    powers_sum = math.fsum(powers)
    return tuple(p / powers_sum for p in powers)
