"""The outlooks of all runs of the queue. Every waiting client asks for one ten times a second, so
they are kept for a moment."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

from flashedge.runtime.programs.outlook import Outlook
from flashedge.runtime.programs.programs import Programs
from flashedge.runtime.queue import RunQueue

KEPT_S = 0.1
OVER = Outlook()
"""Nothing is known of a run that is over."""


class Outlooks:
    """Finds the outlook of a run. It is at most `KEPT_S` old, and newer than the queue's last
    change."""

    def __init__(self, programs: Programs, queue: RunQueue) -> None:
        self._programs = programs
        self._queue = queue
        self._found: Mapping[str, Outlook] = {}
        self._made: tuple[int, float] | None = None

    def find(self, run_id: str) -> Outlook:
        now_s = asyncio.get_running_loop().time()
        changes, made_s = self._made or (-1, 0.0)
        if changes != self._queue.changes or now_s - made_s >= KEPT_S:
            self._made = self._queue.changes, now_s
            self._found = self._programs.find_outlooks(self._queue.view())
        return self._found.get(run_id, OVER)
