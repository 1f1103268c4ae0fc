"""Cancelling a batch while one of its submissions is still on its way."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

import pytest

from flashedge.batch.attempts import Attempts
from flashedge.errors import NotFound


class SlowDaemon:
    """The part of the async client that a batch uses. What was sent arrives, whether or not the
    sender waits for the answer, once `arrives` is set."""

    def __init__(self) -> None:
        self.sent, self.arrives = asyncio.Event(), asyncio.Event()
        self.running: set[str] = set()
        self.arrivals: list[asyncio.Task[None]] = []

    async def run(self, name: str, wait_s: float = 0.0) -> dict[str, Any]:
        if name not in self.running:
            raise NotFound(name)
        return {"id": name, "status": "running"}

    async def submit(self, body: Mapping[str, Any]) -> dict[str, Any]:
        self.arrivals.append(asyncio.create_task(self.receive(body["id"])))
        self.sent.set()
        await asyncio.shield(self.arrivals[-1])
        return {"id": body["id"], "status": "queued"}

    async def receive(self, name: str) -> None:
        await self.arrives.wait()
        self.running.add(name)

    async def cancel(self, run: str) -> dict[str, Any]:
        if run not in self.running:
            raise NotFound(run)
        self.running.discard(run)
        return {"id": run, "status": "cancelled"}


def test_a_run_that_is_being_submitted_is_cancelled_once_it_exists() -> None:
    async def check() -> None:
        daemon = SlowDaemon()
        client: Any = daemon
        attempts = Attempts(client, "key", {})
        work = asyncio.create_task(attempts.run(0, "How many?"))
        await daemon.sent.wait()
        work.cancel()
        with pytest.raises(asyncio.CancelledError):
            await work
        asyncio.get_running_loop().call_soon(daemon.arrives.set)
        assert await attempts.cancel_open() == 1
        await asyncio.gather(*daemon.arrivals)
        assert daemon.running == set()

    asyncio.run(check())
