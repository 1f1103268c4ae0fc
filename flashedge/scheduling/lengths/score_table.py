"""The figures of all waiting requests in arrays, so that one expression scores them anew."""

from __future__ import annotations

import numpy as np

from flashedge.scheduling.lengths.base import Floats
from flashedge.scheduling.lengths.tail import TailFigures
from flashedge.scheduling.lengths.tie import Decay, compute_scores

_FIRST_ROWS = 64


class ScoreTable:
    """Caches expectation, conditional value at risk and arrival of each waiting request.

    It changes when a request arrives, is predicted, or leaves. The weight of the tail and the
    waiting times change far more often; they need no new figures. The rows are in no order.
    """

    def __init__(self) -> None:
        self._keys: list[str] = []
        self._rows: dict[str, int] = {}
        self._figures: Floats = np.empty((4, _FIRST_ROWS))  # expected, CVaR, arrival, number
        self._added = 0

    def __len__(self) -> int:
        return len(self._keys)

    def __contains__(self, key: str) -> bool:
        return key in self._rows

    @property
    def keys(self) -> tuple[str, ...]:
        """In the order of the rows, which is that of the scores."""
        return tuple(self._keys)

    def put(self, key: str, figures: TailFigures, arrived_s: float) -> None:
        """Add a request, or replace its figures."""
        if key not in self._rows:
            row = self._rows[key] = len(self._keys)
            self._keys.append(key)
            if row == self._figures.shape[1]:
                self._figures = np.concatenate([self._figures, np.empty_like(self._figures)], 1)
            self._figures[3, row] = self._added
            self._added += 1
        cached = figures.expected, figures.conditional_value_at_risk, arrived_s
        self._figures[:3, self._rows[key]] = cached

    def remove(self, key: str) -> None:
        """Remove a request; the last row moves to its place. Raises KeyError for an unknown key."""
        row = self._rows.pop(key)
        last = self._keys.pop()
        if last != key:
            self._keys[row] = last
            self._rows[last] = row
            self._figures[:, row] = self._figures[:, len(self._keys)]

    def score(self, now_s: float, *, weight: float, decay: Decay) -> Floats:
        """Score all requests anew. Returns (num_requests,) scores in the order of `keys`.

        now_s: on the clock of the arrivals. weight: λ (`tie.compute_risk_weight`).
        """
        expected, risk, arrived_s, _ = self._figures[:, : len(self._keys)]
        return compute_scores(expected, risk, now_s - arrived_s, weight=weight, decay=decay)

    def order(self, now_s: float, *, weight: float, decay: Decay) -> tuple[str, ...]:
        """Score all requests anew and sort them, lowest score first, equal ones by arrival, and
        those that arrived together as they were added."""
        scores = self.score(now_s, weight=weight, decay=decay)
        _, _, arrived_s, number = self._figures[:, : len(self._keys)]
        rows = np.lexsort((number, arrived_s, scores))
        return tuple(map(self._keys.__getitem__, rows.tolist()))
