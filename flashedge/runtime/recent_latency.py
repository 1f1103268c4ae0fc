"""Percentiles of how fast the last requests were."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from math import ceil
from typing import Any

RECENT = 1000
"""Requests of each kind that count."""
PERCENTILES = (50, 90, 99)


class RecentLatency:
    """Two times of each request: until its first token, and for each token after it."""

    def __init__(self) -> None:
        self._first: deque[float] = deque(maxlen=RECENT)
        self._each: deque[float] = deque(maxlen=RECENT)

    def note(self, first_token_s: float, token_s: float | None) -> None:
        """token_s: None of a request with one token."""
        self._first.append(first_token_s)
        if token_s is not None:
            self._each.append(token_s)

    def describe(self) -> Mapping[str, Any]:
        """`requests`, and `first_token_s` and `token_s`, each {p50, p90, p99} or None."""
        return {
            "requests": len(self._first),
            "first_token_s": _find_percentiles(self._first),
            "token_s": _find_percentiles(self._each),
        }


def _find_percentiles(seconds: deque[float]) -> dict[str, float] | None:
    if not seconds:
        return None
    ordered = sorted(seconds)
    return {f"p{p}": ordered[ceil(p / 100 * len(ordered)) - 1] for p in PERCENTILES}
