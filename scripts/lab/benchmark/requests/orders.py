"""Orders of the waiting queue, as functions of arrays: fast enough to be asked at every event.

An order scores the waiting requests, and the lowest goes first. It holds no state, so it may be
asked at any time, and only when it matters.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]


class WaitingOrder(Protocol):
    """Scores requests by their numbers in the case."""

    def score(self, waiting: Integers, now_s: float) -> Floats:
        """(len(waiting),) scores of these requests, the only ones that wait. Equal scores go by
        arrival."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class FixedOrder:
    """Scores that do not change while requests wait."""

    scores: Floats
    """(requests,)"""

    def score(self, waiting: Integers, now_s: float) -> Floats:
        return self.scores[waiting]


def order_by_arrival(requests: int) -> FixedOrder:
    """First come, first served."""
    return FixedOrder(scores=np.zeros(requests))


def order_by_length(output_tokens: Integers) -> FixedOrder:
    """The oracle that knows each request's length."""
    return FixedOrder(scores=output_tokens.astype(np.float64))


def sort_waiting(
    order: WaitingOrder, waiting: Integers, now_s: float, most: int | None = None
) -> Integers:
    """Sort requests by score, equal ones by arrival.

    waiting: numbers in rising order. most: how many of the first are needed; None: all.
    """
    scores = order.score(waiting, now_s)
    if most is not None and most < len(waiting):
        bound = np.partition(scores, most - 1)[most - 1]
        near = scores <= bound
        waiting, scores = waiting[near], scores[near]
    return waiting[np.argsort(scores, kind="stable")][:most]
