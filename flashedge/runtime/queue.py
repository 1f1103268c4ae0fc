"""Admits runs in the order of their arrival, a bounded number at once."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from flashedge.errors import QueueFull

RETRY_AFTER_S = 5.0


class RunQueue:
    """Lets `max_running` runs go on at once. Up to `limit` more wait, in the order of `reserve`."""

    def __init__(self, max_running: int, limit: int) -> None:
        self._max_running = max_running
        self._limit = limit
        self._running: set[str] = set()
        self._waiting: deque[tuple[str, asyncio.Future[None]]] = deque()

    @property
    def running(self) -> int:
        return len(self._running)

    @property
    def waiting(self) -> int:
        return len(self._waiting)

    def position(self, run_id: str) -> int | None:
        """Number of runs that wait before this one. None when it does not wait."""
        return next((i for i, (w, _) in enumerate(self._waiting) if w == run_id), None)

    def check_room(self) -> None:
        """Raises QueueFull when no further run may wait."""
        if len(self._waiting) >= self._limit and len(self._running) >= self._max_running:
            raise QueueFull(
                f"{len(self._running)} runs are running and {len(self._waiting)} are waiting",
                retry_after_s=RETRY_AFTER_S,
                hint="try again later, or raise queue_limit",
            )

    def reserve(self, run_id: str) -> None:
        """Join the queue. Raises QueueFull."""
        self.check_room()
        self._waiting.append((run_id, asyncio.get_running_loop().create_future()))
        self._admit()

    @asynccontextmanager
    async def wait_turn(self, run_id: str) -> AsyncIterator[None]:
        """Wait until the run is admitted. The block's end admits the next one."""
        admitted = next((f for w, f in self._waiting if w == run_id), None)
        try:
            if admitted is not None and run_id not in self._running:
                await admitted
            yield
        finally:
            self.leave(run_id)

    def leave(self, run_id: str) -> None:
        """Stop running or waiting, and admit the next run."""
        self._running.discard(run_id)
        self._waiting = deque((w, f) for w, f in self._waiting if w != run_id)
        self._admit()

    def _admit(self) -> None:
        while self._waiting and len(self._running) < self._max_running:
            run_id, admitted = self._waiting.popleft()
            self._running.add(run_id)
            if not admitted.done():
                admitted.set_result(None)
