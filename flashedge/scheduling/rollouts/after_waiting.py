"""How long the gate stays shut after somebody has waited: until nobody has waited for as long as
somebody had.

A rollout that is cancelled was computed for nothing. While the engines idle nobody misses that
time, but where programs have waited for most of a minute, more of them are likely to wait soon, and
what was wasted meanwhile makes all of them later. So the time in which somebody waits adds up, and
the time in which nobody does is taken off again: under lasting load the gate opens where people
wait for less than half of the time, and where at least `SHORTEST_S` passes between two that wait.
Ours.
"""

from __future__ import annotations

SHORTEST_S = 1.0
"""Shortest pause: each closing cancels rollouts, so the gate must not open between two programs
that wait shortly after each other."""
LONGEST_S = 60.0
"""Longest pause: even an hour of heavy load may be over by then."""


class AfterWaiting:
    """Follows who waits. Has no clock: times are arguments, in seconds, and must not fall."""

    def __init__(self) -> None:
        self._balance_s = 0.0
        """Time waited, less the time since in which nobody did."""
        self._shut_until_s = 0.0
        """End of the shortest pause."""
        self._noted_s = 0.0
        self._waited = False
        """What was noted last, and when."""

    def note(self, now_s: float, *, waits: bool) -> bool:
        """Whether the gate is shut now. waits: whether anybody waits now.

        Between two notes somebody waited if both say so, and nobody if neither does. What passed
        without a note for longer than `SHORTEST_S` counts as time in which nobody waited.
        """
        seen_s = min(now_s - self._noted_s, SHORTEST_S)
        self._drain(now_s - self._noted_s - seen_s)
        if waits and self._waited:
            self._balance_s = min(self._balance_s + seen_s, LONGEST_S)
        elif not waits and not self._waited:
            self._drain(seen_s)
        if waits:
            self._shut_until_s = now_s + SHORTEST_S
        self._noted_s, self._waited = now_s, waits
        return self._balance_s > 0.0 or now_s < self._shut_until_s

    def _drain(self, free_s: float) -> None:
        self._balance_s = max(0.0, self._balance_s - free_s)
