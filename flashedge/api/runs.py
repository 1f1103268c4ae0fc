"""Runs: /v1/solve and /v1/runs."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Annotated

from fastapi import APIRouter, Query, Request
from starlette.responses import Response

from flashedge.api.bodies import body_of, openapi_of
from flashedge.api.contract import Defaults, HandlePort, ServicePort
from flashedge.api.failures import Json
from flashedge.api.schemas import SolveBody
from flashedge.api.specs import solve_spec
from flashedge.api.sse import OPENED, ClientGone, EventStream, frame, owned, unless_gone
from flashedge.errors import RequestError
from flashedge.events import to_json

STATUSES = ("queued", "running", "finished", "failed", "cancelled", "interrupted")
LEFT = "the client disconnected"
QUEUE_POLL_S = 0.1


def runs_router(service: ServicePort, defaults: Defaults) -> APIRouter:
    router = APIRouter(prefix="/v1")

    def submitted(body: SolveBody) -> HandlePort:
        spec = solve_spec(body, service.pair, defaults)
        return service.submit(spec, run_id=body.id, continues=body.continues)

    @router.post("/solve", openapi_extra=openapi_of(SolveBody))
    async def solve(request: Request) -> Response:
        """Run a search. The client's leaving cancels it, unless `detach`."""
        body = await body_of(request, SolveBody)
        handle = submitted(body)
        headers = {"X-FlashEdge-Run": handle.id}

        def leave() -> None:
            if not body.detach:
                handle.cancel(LEFT)  # does nothing to a run that is over

        if body.stream:
            return EventStream(
                _queue_then_events(handle), on_close=leave, error_event="error", headers=headers
            )
        try:
            return Json(await unless_gone(request, handle.result()), headers=headers)
        except ClientGone:
            return Response(status_code=499)
        finally:
            leave()

    @router.post("/runs", openapi_extra=openapi_of(SolveBody))
    async def create(request: Request) -> Response:
        """Queue a search and return at once."""
        body = await body_of(request, SolveBody)
        if body.stream:
            raise RequestError(
                "a queued run is not streamed", hint="follow /v1/runs/{id}/events", param="stream"
            )
        handle = submitted(body)
        return Json(
            {"id": handle.id, "status": handle.status, "position": handle.position},
            status_code=202,
            headers={"Location": f"/v1/runs/{handle.id}", "X-FlashEdge-Run": handle.id},
        )

    @router.get("/runs")
    async def listing(
        limit: Annotated[int, Query(ge=1, le=1000)] = 20,
        before: str | None = None,
        status: str | None = None,
    ) -> Response:
        """Newest first. `before`: the last id of the page before."""
        if status is not None and status not in STATUSES:
            known = ", ".join(STATUSES)
            raise RequestError(f"status is {status!r}; it must be one of {known}", param="status")
        found = service.runs(limit=limit + 1, before=before, status=status)
        data = [dataclasses.asdict(run) for run in found[:limit]]
        return Json({"object": "list", "data": data, "has_more": len(found) > limit})

    @router.get("/runs/{run_id}")
    async def get(run_id: str) -> Response:
        return Json(service.run(run_id).object())

    @router.get("/runs/{run_id}/events")
    async def events(request: Request, run_id: str, after: str | None = None) -> Response:
        """The run's log from the beginning, or after the event `Last-Event-ID` (or `after`)."""
        start = _event_number(request.headers.get("last-event-id") or after)
        return EventStream(_events(service.run(run_id), start), error_event="error")

    @router.post("/runs/{run_id}/cancel")
    async def cancel(run_id: str) -> Response:
        """Idempotent. Answers with the run as it is then."""
        handle = service.run(run_id)
        handle.cancel("cancelled by request")
        await asyncio.sleep(0)  # let a run that waits in the queue see it
        return Json(handle.object())

    @router.delete("/runs/{run_id}")
    async def delete(run_id: str) -> Response:
        service.delete(run_id)
        return Json({"id": run_id, "object": "run", "deleted": True})

    return router


async def _queue_then_events(handle: HandlePort) -> AsyncGenerator[bytes]:
    """`queued` with the position, again whenever it changes, then the run's events."""
    told = handle.position
    yield frame({"id": handle.id, "position": told}, event="queued")
    while handle.position is not None:
        if handle.position != told:
            told = handle.position
            yield frame({"id": handle.id, "position": told}, event="queued")
        await asyncio.sleep(QUEUE_POLL_S)
    async with aclosing(_events(handle, 0)) as events:
        async for item in events:
            yield item


async def _events(handle: HandlePort, after: int) -> AsyncGenerator[bytes]:
    """Ends after the terminal event, or where the log of an interrupted run does."""
    yield OPENED
    async with owned(handle.events(after)) as source:
        async for seq, event in source:
            yield frame(to_json(event), event=type(event).__name__, id=seq)


def _event_number(text: str | None) -> int:
    if not text:
        return 0
    if not (text.isascii() and text.isdigit() and len(text) < 16):
        raise RequestError(f"{text[:40]!r} is not an event number", param="after")
    return int(text)
