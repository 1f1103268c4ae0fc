"""Holds runs until they may start. Who goes next is decided elsewhere (`Admission`)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Collection, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Protocol

from flashedge.errors import QueueFull

RETRY_AFTER_S = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueView:
    """The runs of a queue at one moment."""

    running: tuple[str, ...] = ()
    waiting: tuple[str, ...] = ()
    """The next one first."""


class Admission(Protocol):
    """Decides which waiting run starts next, and when."""

    def order(self, waiting: Sequence[str]) -> Sequence[str]:
        """The waiting runs, the next one first. They are given in the order of their arrival."""
        ...

    def may_start(self, run_id: str, running: Collection[str]) -> bool:
        """Whether the next run may start beside those that run."""
        ...


class FirstCome:
    """The naive twin: by arrival, a fixed number at once."""

    def __init__(self, max_running: int) -> None:
        self._max_running = max_running

    def order(self, waiting: Sequence[str]) -> Sequence[str]:
        return waiting

    def may_start(self, run_id: str, running: Collection[str]) -> bool:
        return len(running) < self._max_running


class RunQueue:
    """Lets runs start as the admission decides. Up to `limit` wait; further ones are refused."""

    def __init__(self, admission: Admission, limit: int) -> None:
        self._admission = admission
        self._limit = limit
        self._running: dict[str, None] = {}
        self._waiting: dict[str, asyncio.Future[None]] = {}
        self.changes = 0
        """How often a run has entered or left the queue."""

    @property
    def running(self) -> int:
        return len(self._running)

    @property
    def waiting(self) -> int:
        return len(self._waiting)

    def view(self) -> QueueView:
        """Which runs run and wait, as things stand."""
        waiting = tuple(self._admission.order(list(self._waiting)))
        return QueueView(running=tuple(self._running), waiting=waiting)

    def position(self, run_id: str) -> int | None:
        """Number of runs that start before this one, as things stand. None when it does not
        wait."""
        return self.view().waiting.index(run_id) if run_id in self._waiting else None

    def check_room(self) -> None:
        """Raises QueueFull when no further run may wait."""
        if len(self._waiting) >= self._limit and (self._waiting or not self._is_open()):
            raise QueueFull(
                f"{len(self._running)} runs are running and {len(self._waiting)} are waiting",
                retry_after_s=RETRY_AFTER_S,
                hint="try again later, or raise queue_limit",
            )

    def _is_open(self) -> bool:
        """Whether some run could start at once."""
        return self._admission.may_start("", self._running)

    def reserve(self, run_id: str) -> None:
        """Join the queue. Raises QueueFull."""
        self.check_room()
        self.changes += 1
        self._waiting[run_id] = asyncio.get_running_loop().create_future()
        self.admit()

    @asynccontextmanager
    async def wait_turn(self, run_id: str) -> AsyncIterator[None]:
        """Wait until the run is admitted. The block's end admits the next one."""
        admitted = self._waiting.get(run_id)
        try:
            if admitted is not None:
                await admitted
            yield
        finally:
            self.leave(run_id)

    def leave(self, run_id: str) -> None:
        """Stop running or waiting, and admit the next run."""
        self.changes += 1
        self._running.pop(run_id, None)
        self._waiting.pop(run_id, None)
        self.admit()

    def admit(self) -> None:
        """Start the runs that may. Call it too when the admission would decide differently now."""
        while self._waiting:
            run_id = self._admission.order(list(self._waiting))[0]
            if not self._admission.may_start(run_id, self._running):
                return
            self.changes += 1
            admitted = self._waiting.pop(run_id)
            self._running[run_id] = None
            if not admitted.done():
                admitted.set_result(None)
