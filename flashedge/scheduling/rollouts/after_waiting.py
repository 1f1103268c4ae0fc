"""How long the gate stays shut after somebody has waited: for as long as the waiting had lasted,
pauses between two that wait included.

A rollout that is cancelled was computed for nothing. While the engines idle nobody misses that
time, but where programs have waited for most of a minute, more of them are likely to wait soon, and
what was wasted meanwhile makes all of them later. How long the waiting lasted tells how busy the
engines are, without a constant that fits all devices. Ours.
"""

from __future__ import annotations

SHORTEST_S = 1.0
"""Each closing cancels rollouts, so the gate must not open between two programs that wait shortly
after each other."""
LONGEST_S = 60.0
"""Longest pause: even an hour of heavy load may be over by then."""


class AfterWaiting:
    """Follows who waits. Has no clock: times are arguments, in seconds."""

    def __init__(self, shortest_s: float = SHORTEST_S, longest_s: float = LONGEST_S) -> None:
        self._shortest_s, self._longest_s = shortest_s, longest_s
        self._began_s: float | None = None
        """When the waiting began, kept until the gate opens again."""
        self._shut_until_s = 0.0

    def note(self, now_s: float, *, waits: bool) -> bool:
        """Whether the gate is shut now. waits: whether anybody waits now.

        Who begins to wait before the gate opens again prolongs the waiting.
        """
        if waits:
            if self._began_s is None:
                self._began_s = now_s
            lasted_s = now_s - self._began_s
            pause_s = min(max(lasted_s, self._shortest_s), self._longest_s)
            self._shut_until_s = now_s + pause_s
        elif now_s >= self._shut_until_s:
            self._began_s = None
        return now_s < self._shut_until_s
