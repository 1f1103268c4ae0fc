"""Runs of a daemon, followed to their end."""

import asyncio
from collections.abc import Callable, Mapping
from contextlib import aclosing, suppress
from typing import Any

from flashedge import events
from flashedge.client import follow
from flashedge.client.async_client import AsyncClient
from flashedge.client.protocol import build_run_error
from flashedge.errors import FlashEdgeError, RequestError
from flashedge.events import Event
from flashedge.runtime.run import create_run_id

ONCE = follow.RetryPolicy(first_s=0.0, max_retries=0)


def find_result(event: object) -> Mapping[str, Any] | None:
    """The result in the event that ends a run, None for an event before it.

    Raises the run's error, and RequestError where it was cancelled.
    """
    match event:
        case events.RunFinished(result=result):
            return result
        case events.RunFailed():
            raise build_run_error(event)
        case events.RunCancelled(reason=reason):
            raise RequestError(f"the run was cancelled: {reason}")
    return None


async def solve(
    client: AsyncClient,
    body: Mapping[str, Any],
    watch: Callable[[Event], None] = lambda event: None,
    **options: Any,
) -> dict[str, Any]:
    """Start a run and return its result. `watch` gets each event before the last.

    options: of `AsyncClient.submit`. When this is cancelled, so is the run. Raises what
    `find_result` does, QueueFull where the run is refused, DaemonError where the daemon stays away.
    """
    run = create_run_id()
    try:
        await client.submit({**body, "id": run}, **options)
        async with aclosing(follow.follow(client, run, follow.UNATTENDED)) as pieces:
            async for event in (event async for piece in pieces for _, event in piece):
                if (result := find_result(event)) is not None:
                    return dict(result)
                watch(event)
    except asyncio.CancelledError:
        await follow.cancel_quietly(client, run)
        raise
    raise AssertionError("a stream of events ends with a terminal one")


async def solve_and_delete(client: AsyncClient, body: Mapping[str, Any]) -> dict[str, Any]:
    """`solve` that waits while the queue is full, and leaves nothing in the daemon's store."""
    result = await follow.retry(lambda: solve(client, body), ONCE)
    with suppress(FlashEdgeError):
        await client.delete(result["id"])
    return result
