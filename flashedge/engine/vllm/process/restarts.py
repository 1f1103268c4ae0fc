"""When a dead engine is started again: at first at once, then ever more rarely, and for ever."""

from __future__ import annotations

BACKOFF_S = (0.1, 1.0, 3.0, 10.0, 30.0, 60.0)
"""Waits before the first, second, … restart in a row. The last one repeats.

A driver that was reset or a card that another program filled may be well again after minutes, and
a user who comes back to a machine finds an engine that serves."""
STABLE_S = 30.0
"""A process that serves for longer than this starts the count of restarts in a row anew."""


class RestartRow:
    """The restarts in a row: how many there were, and when the next one is.

    Times are those of any one clock, in seconds.
    """

    def __init__(self) -> None:
        self.attempt = 0
        """Number of the restart that is under way or comes next. 0 before the first death."""
        self._next_at: float | None = None

    def begin(self, lived_s: float) -> None:
        """A process ended that served for `lived_s`."""
        if lived_s > STABLE_S:
            self.attempt = 0

    def plan(self, now: float) -> float:
        """Plan the next restart. Returns the seconds until then."""
        wait_s = BACKOFF_S[min(self.attempt, len(BACKOFF_S) - 1)]
        self.attempt += 1
        self._next_at = now + wait_s
        return wait_s

    def start(self) -> None:
        """The planned restart begins."""
        self._next_at = None

    def count_down(self, now: float) -> float | None:
        """Seconds until the planned restart. None if none is planned, or it is under way."""
        return None if self._next_at is None else max(0.0, self._next_at - now)
