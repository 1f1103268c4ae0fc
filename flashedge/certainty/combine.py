"""Several measures of certainty at once: each has its threshold, and all must pass."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Thresholds:
    """least: (measure, least value in [0, 1]) pairs, at least one to ever pass.

    A measure that could not be taken does not pass. Ref: arXiv 2412.20993 App. B.1, Table 3.
    Departure: a value that equals its threshold passes ("exceeds" in the paper), so that a
    threshold of 1 can be met.
    """

    least: tuple[tuple[str, float], ...]

    def met(self, measures: Mapping[str, float]) -> bool:
        return bool(self.least) and all(
            name in measures and measures[name] >= value for name, value in self.least
        )
