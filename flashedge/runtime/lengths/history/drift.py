"""Notices that lengths have changed, before the groups have forgotten the earlier ones.

A running average of how much longer the last runs were than their groups said. It is used as far as
it is larger than chance would make it, so that it does nothing while nothing changes.
"""

from __future__ import annotations

GAIN = 1 / 12
"""Share of the newest run in the average. Half of it comes from the last 8 runs."""
DOUBT = 2.0
"""Standard deviations of the average that count as chance."""


class Drift:
    """Of one group of prompts. All values are differences of mu, so e^value is a factor."""

    def __init__(self) -> None:
        self._average = 0.0
        self._share = 0.0
        """Square of the average's standard deviation, as a share of that of one run."""

    def add(self, difference: float) -> None:
        """Add a run. difference: its own mu less that of its group."""
        self._average += GAIN * (difference - self._average)
        self._share = (1 - GAIN) ** 2 * self._share + GAIN**2

    def find_correction(self, between: float) -> float:
        """What to add to a group's mu. between: standard deviation of mu between prompts."""
        chance = DOUBT**2 * self._share * between**2
        square = self._average**2
        return self._average * (1 - chance / square) if square > chance else 0.0
