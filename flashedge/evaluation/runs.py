"""Runs on a daemon that are waited for: taken up again when cut off, cancelled when given up."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Mapping
from contextlib import aclosing, suppress
from typing import Any

from flashedge import events
from flashedge.client.async_client import AsyncClient
from flashedge.client.sync_client import RECONNECT_DELAY_S, RECONNECTS, from_event
from flashedge.errors import DaemonError, FlashEdgeError, QueueFull, RequestError, RunInterrupted

_CANCEL_TIMEOUT_S = 5.0


async def result_of(client: AsyncClient, body: Mapping[str, Any]) -> dict[str, Any]:
    """Start a run and wait for its object; cancelled, cancel the run too.

    The run is then removed from the daemon's store: whoever asks keeps what it needs. Raises the
    run's error, DaemonError when the daemon is lost, RequestError when somebody cancelled the run.
    """
    run = f"run-eval-{uuid.uuid4().hex}"
    try:
        await _submit(client, {**body, "id": run})
        result = await _finished(client, run)
    except asyncio.CancelledError:
        with suppress(FlashEdgeError, TimeoutError):
            async with asyncio.timeout(_CANCEL_TIMEOUT_S):
                await client.cancel(run)
        raise
    with suppress(FlashEdgeError):
        await client.delete(run)
    return result


async def _submit(client: AsyncClient, body: Mapping[str, Any]) -> None:
    """Submit once the daemon's queue has a place."""
    while True:
        try:
            await client.submit(body)
            return
        except QueueFull as error:
            await asyncio.sleep(error.retry_after_s)


async def _finished(client: AsyncClient, run: str) -> dict[str, Any]:
    last, attempt = 0, 0
    while True:
        try:
            async with aclosing(client.events(run, after=last)) as pieces:
                async for piece in pieces:
                    last, attempt = piece[-1][0], 0
                    match piece[-1][1]:
                        case events.RunFinished(result=result):
                            return dict(result)
                        case events.RunFailed() as failed:
                            raise from_event(failed)
                        case events.RunCancelled(reason=reason):
                            raise RequestError(f"run {run} was cancelled: {reason}")
        except RunInterrupted:
            raise
        except DaemonError:
            attempt += 1
            if attempt == RECONNECTS:
                raise
            await asyncio.sleep(RECONNECT_DELAY_S * 2**attempt)
