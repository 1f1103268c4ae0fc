"""Thresholds on several measures of certainty, all of which must be met."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Thresholds:
    """The least value of each measure at which a run may stop.

    Ref: arXiv 2412.20993 App. B.1, Table 3. Departure: a value equal to its threshold meets it
    (the paper says "exceeds"), so that a threshold of 1 can be met.
    """

    least: tuple[tuple[str, float], ...]
    """(measure, least value in [0, 1]) pairs. Without a pair the thresholds are never met."""

    def met(self, measures: Mapping[str, float]) -> bool:
        """Whether every measure is present and at least its threshold."""
        return bool(self.least) and all(
            name in measures and measures[name] >= value for name, value in self.least
        )
