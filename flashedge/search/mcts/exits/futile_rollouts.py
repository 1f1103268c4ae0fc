"""Cancels a single rollout as soon as its path is futile, and never starts one at a futile leaf.

Such a rollout counts among n, but leaves no visit. Once no other leaf is left, the search is over.
The first path always runs to its end, so that there is an answer.

Off unless `Exits.cut_rollouts`. Ref: arXiv 2604.00510 §4.1 (a deterministic rule).
"""

from __future__ import annotations

from collections.abc import Iterable

from flashedge.search.flights import Flight
from flashedge.search.mcts.exits.futility import is_futile


def list_futile(flights: Iterable[Flight], threshold: float) -> tuple[Flight, ...]:
    return tuple(flight for flight in flights if is_futile(flight.reward, threshold))
