"""What users see of the runs in a pair's queue and of their programs."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import replace

from flashedge.runtime.programs.outlook import Outlook
from flashedge.runtime.programs.programs import Programs
from flashedge.runtime.queue import RunQueue
from flashedge.scheduling.programs.standing import Standing, find_standings, predict_output

KEPT_S = 0.1
OVER = Outlook()
"""Nothing is known of a run that is over."""


class Outlooks:
    """Finds the outlooks of runs and the standings of programs.

    Every waiting client asks for an outlook ten times a second, so they are kept for a moment.
    """

    def __init__(self, pair: str, programs: Programs, queue: RunQueue) -> None:
        self._pair = pair
        self._programs = programs
        self._queue = queue
        self._found: Mapping[str, Outlook] = {}
        self._made: tuple[int, float] | None = None

    def find(self, run_id: str) -> Outlook:
        """A run's outlook. It is at most `KEPT_S` old, and newer than the queue's last change."""
        now_s = asyncio.get_running_loop().time()
        changes, made_s = self._made or (-1, 0.0)
        if changes != self._queue.changes or now_s - made_s >= KEPT_S:
            self._made = self._queue.changes, now_s
            self._found = self.find_all()
        return self._found.get(run_id, OVER)

    def find_all(self) -> dict[str, Outlook]:
        """The outlook of each run of the queue, by its id, as it is now."""
        runs = self._queue.view()
        found = {run_id: self._predict_lengths(run_id) for run_id in runs.running}
        starts = self._programs.predict_starts(runs)
        for position, (run_id, start_s) in enumerate(zip(runs.waiting, starts, strict=True)):
            outlook = self._predict_lengths(run_id)
            found[run_id] = replace(outlook, position=position, starts_in_s=start_s)
        return found

    def list_standings(self) -> list[Standing]:
        """What is known of each program, in their order."""
        programs, runs = self._programs, self._queue.view()
        queued: dict[str, float | None] = {}
        for run_id, start_s in zip(runs.waiting, programs.predict_starts(runs), strict=True):
            queued.setdefault(programs.find_program(run_id), start_s)
        return find_standings(self._pair, programs.list_ordered(), programs.now_s(), queued)

    def _predict_lengths(self, run_id: str) -> Outlook:
        run = self._programs.get_run(run_id)
        if run is None:
            return OVER
        median, tail = predict_output(run)
        return Outlook(median_tokens=median, tail_tokens=tail)
