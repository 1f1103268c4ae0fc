"""How long nobody has used the daemon, and whether its engines are to be unloaded for that."""

from __future__ import annotations

import time
from collections.abc import Callable


class IdleClock:
    """Seconds without a run or request, and how many of them the engines stay loaded."""

    def __init__(self, keep_alive_s: float, is_busy: Callable[[], bool]) -> None:
        """keep_alive_s: the setting. is_busy: whether anything is open, or engines start."""
        self._usual_s = self._keep_alive_s = keep_alive_s
        self._is_busy = is_busy
        self.busy_at = time.monotonic()
        """When the last run or request ended. `time.monotonic`."""

    @property
    def idle_s(self) -> float:
        """Seconds since the last run or request ended. 0 while one is open."""
        now = time.monotonic()
        if self._is_busy():
            self.busy_at = now
        return now - self.busy_at

    @property
    def is_due(self) -> bool:
        """Whether loaded engines have been idle for as long as the last request allows."""
        return 0 <= self._keep_alive_s < self.idle_s

    def note_end(self) -> None:
        """A run or request is over."""
        self.busy_at = time.monotonic()

    def keep_alive(self, seconds: float | None) -> None:
        """Note how long the request that now begins wants the engines to stay loaded after it.

        None: as long as the setting says. Negative: for ever. The last request decides.
        """
        self._keep_alive_s = self._usual_s if seconds is None else seconds
