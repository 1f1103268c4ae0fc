"""Who runs now and who waits: first come, first served, a bounded number of each."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from flashedge.errors import QueueFull

RETRY_AFTER_S = 5.0


class RunQueue:
    """`max_running` tickets; up to `limit` holders wait for one in the order of `reserve`."""

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
        """How many wait before it; None when it does not wait."""
        return next((i for i, (w, _) in enumerate(self._waiting) if w == run_id), None)

    def reserve(self, run_id: str) -> None:
        """Take a place in line. Raises QueueFull."""
        if len(self._waiting) >= self._limit and len(self._running) >= self._max_running:
            raise QueueFull(
                f"{len(self._running)} runs are under way and {len(self._waiting)} wait",
                retry_after_s=RETRY_AFTER_S,
                hint="try again later, or raise queue_limit",
            )
        self._waiting.append((run_id, asyncio.get_running_loop().create_future()))
        self._admit()

    @asynccontextmanager
    async def turn(self, run_id: str) -> AsyncIterator[None]:
        """Wait for the reserved turn; the next one is admitted at the end of the block."""
        turn = next((f for w, f in self._waiting if w == run_id), None)
        try:
            if turn is not None and run_id not in self._running:
                await turn
            yield
        finally:
            self.leave(run_id)

    def leave(self, run_id: str) -> None:
        """Give up the ticket or the place in line; the next one is admitted."""
        self._running.discard(run_id)
        self._waiting = deque((w, f) for w, f in self._waiting if w != run_id)
        self._admit()

    def _admit(self) -> None:
        while self._waiting and len(self._running) < self._max_running:
            run_id, turn = self._waiting.popleft()
            self._running.add(run_id)
            if not turn.done():
                turn.set_result(None)
