"""Run a problem on the daemon and wait for its result."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Mapping
from contextlib import aclosing, suppress
from typing import Any

from flashedge import events
from flashedge.client import follow
from flashedge.client.async_client import AsyncClient
from flashedge.client.protocol import build_run_error
from flashedge.errors import FlashEdgeError, QueueFull, RequestError


async def run_to_end(client: AsyncClient, body: Mapping[str, Any]) -> dict[str, Any]:
    """Start a run, wait for it, and return its object. If this is cancelled, so is the run.

    The run is then deleted from the daemon's store, since the caller keeps what it needs. Raises
    the run's error, DaemonError when the daemon stays away, RequestError when somebody else
    cancelled the run.
    """
    run = f"run-eval-{uuid.uuid4().hex}"
    try:
        await _submit(client, {**body, "id": run})
        result = await _await_result(client, run)
    except asyncio.CancelledError:
        await follow.cancel_quietly(client, run)
        raise
    with suppress(FlashEdgeError):
        await client.delete(run)
    return result


async def _submit(client: AsyncClient, body: Mapping[str, Any]) -> None:
    """Submit the run once the daemon's queue has room."""
    while True:
        try:
            await client.submit(body)
            return
        except QueueFull as error:
            await asyncio.sleep(error.retry_after_s)


async def _await_result(client: AsyncClient, run: str) -> dict[str, Any]:
    async with aclosing(follow.follow(client, run, follow.UNATTENDED)) as pieces:
        async for piece in pieces:
            match piece[-1][1]:
                case events.RunFinished(result=result):
                    return dict(result)
                case events.RunFailed() as failed:
                    raise build_run_error(failed)
                case events.RunCancelled(reason=reason):
                    raise RequestError(f"run {run} was cancelled: {reason}")
    raise AssertionError("a stream of events ends with a terminal one")
