"""Removes the oldest runs from the store, by the settings keep_runs_days and keep_runs_gib."""

import asyncio
import logging
import math
import time
from contextlib import suppress

from flashedge.config import Config
from flashedge.errors import NotFound, StoreError
from flashedge.runtime.records.store import RunStore

log = logging.getLogger(__name__)
DAY_S = 86_400.0
EVERY_S = 600.0
"""Least seconds between two looks at the store. Chosen by hand: limits in days and GiB need no
more, and other threads wait for each look."""


class Retention:
    """Keeps one store within its limits."""

    def __init__(self, store: RunStore, config: Config) -> None:
        self._store = store
        self._days = config.keep_runs_days
        self._most_bytes = round(config.keep_runs_gib * 2**30)
        self._looked_at = -math.inf
        self._task: asyncio.Task[None] | None = None
        self._began = time.time(), time.monotonic()

    def look(self) -> None:
        """Look at the store in a thread, if it is time."""
        if self._task is None and time.monotonic() - self._looked_at > EVERY_S:
            self._looked_at = time.monotonic()
            self._task = asyncio.create_task(self._remove_in_thread(), name="retention")

    async def stop(self) -> None:
        """Wait for the look that is under way, and begin no further one."""
        self._looked_at = math.inf
        if self._task is not None:
            await self._task

    async def _remove_in_thread(self) -> None:
        try:
            await asyncio.to_thread(self.remove_old)
        except StoreError as error:
            log.warning("old runs are not removed: %s", error.line)
        finally:
            self._task = None

    def remove_old(self, now: float | None = None) -> int:
        """Remove ended runs that are too old, then the oldest until the store is small enough.
        Returns how many. Raises StoreError. now: unix seconds, by default those of `_tell_time`."""
        removed = 0
        if self._days is not None:
            end = (self._tell_time() if now is None else now) - self._days * DAY_S
            while found := self._store.list_oldest(ended_before=end):
                removed += self._delete(found)
        while self._store.measure_bytes() > self._most_bytes:
            if not (found := self._store.list_oldest(limit=1)):
                break
            removed += self._delete(found)
        if removed:
            log.info("removed %d old runs (keep_runs_days, keep_runs_gib)", removed)
        return removed

    def _tell_time(self) -> float:
        """Return unix seconds, but at most the daemon's start plus the seconds since then, so that
        no run is too old because the system's clock has jumped ahead."""
        wall_s, steady_s = self._began
        return min(time.time(), wall_s + time.monotonic() - steady_s)

    def _delete(self, run_ids: list[str]) -> int:
        deleted = 0
        for run_id in run_ids:
            with suppress(NotFound):  # a client was faster
                self._store.delete(run_id)
                deleted += 1
        return deleted
