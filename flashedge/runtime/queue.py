"""Holds runs until they may start. Who goes next is decided elsewhere (`PairScheduler`)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Collection, Sequence
from contextlib import asynccontextmanager

from flashedge.errors import QueueFull


class RunQueue:
    """Up to `limit` runs wait; further ones are refused."""

    def __init__(
        self,
        order: Callable[[Sequence[str]], Sequence[str]],
        may_start: Callable[[str, Collection[str]], bool],
        limit: int,
    ) -> None:
        """order: sorts waiting runs, the next one first. may_start: whether a run may start
        together with those that run. "" stands for any."""
        self._order = order
        self._may_start = may_start
        self._limit = limit
        self._running: dict[str, None] = {}
        self._waiting: dict[str, asyncio.Future[None]] = {}
        self.changes = 0
        """How often a run has entered or left the queue."""

    @property
    def running(self) -> tuple[str, ...]:
        return tuple(self._running)

    @property
    def waiting(self) -> Sequence[str]:
        """The next one first."""
        return self._order(list(self._waiting))

    @property
    def sizes(self) -> tuple[int, int]:
        """How many runs wait, and how many run."""
        return len(self._waiting), len(self._running)

    def check_room(self) -> None:
        """Raises QueueFull when no further run may wait."""
        waiting = len(self._waiting)
        if waiting >= self._limit and (waiting or not self._may_start("", self._running)):
            raise QueueFull(
                f"{len(self._running)} runs are running and {waiting} are waiting",
                hint="try again later, or raise queue_limit",
            )

    def reserve(self, run_id: str) -> None:
        """Join the queue. Raises QueueFull."""
        self.check_room()
        self.changes += 1
        self._waiting[run_id] = asyncio.get_running_loop().create_future()
        self.admit()

    @asynccontextmanager
    async def wait_turn(self, run_id: str) -> AsyncIterator[None]:
        """Hold a place for the block, once the run is admitted."""
        admitted = self._waiting.get(run_id)
        try:
            if admitted is not None:
                await admitted
            yield
        finally:
            self.leave(run_id)

    def leave(self, run_id: str) -> None:
        """Stop running or waiting, and admit the next run. Does nothing once the run has left."""
        if run_id not in self._running and run_id not in self._waiting:
            return
        self.changes += 1
        self._running.pop(run_id, None)
        self._waiting.pop(run_id, None)
        self.admit()

    def admit(self) -> None:
        """Start the runs that may. Call it when less room may be needed than was thought."""
        while self._waiting:
            run_id = self.waiting[0]
            if not self._may_start(run_id, self._running):
                return
            self.changes += 1
            admitted = self._waiting.pop(run_id)
            self._running[run_id] = None
            if not admitted.done():
                admitted.set_result(None)
