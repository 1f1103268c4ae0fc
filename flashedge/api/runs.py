"""Searches: /v1/solve and /v1/runs."""

import asyncio
import dataclasses
from collections.abc import AsyncGenerator
from contextlib import aclosing, suppress
from typing import Annotated, Literal

from fastapi import APIRouter, Query, Request
from starlette.responses import Response

from flashedge.api.bodies import describe_body, parse_keep_alive, read_body
from flashedge.api.failures import Json
from flashedge.api.pairs import ServablePairs
from flashedge.api.schemas import SolveBody
from flashedge.api.specs import build_solve_spec, read_caller
from flashedge.api.sse import DISCONNECTED, EventStream, frame, run_while_connected
from flashedge.errors import FlashEdgeError, RequestError
from flashedge.events import to_json
from flashedge.runtime.request.plan import pin_early_exit
from flashedge.runtime.run import RunHandle
from flashedge.runtime.service import Service
from flashedge.scheduling.programs.estimates import RunEstimate

Status = Literal["queued", "running", "finished", "failed", "cancelled", "interrupted"]
QUEUE_POLL_S = 0.1  # short enough to look immediate
POLLS_PER_S = round(1 / QUEUE_POLL_S)
MAX_WAIT_S = 30.0  # clients and proxies often give up after 60 s


def runs_router(service: Service, pairs: ServablePairs) -> APIRouter:
    router = APIRouter(prefix="/v1")

    async def submit(request: Request, body: SolveBody) -> RunHandle:
        pair = pairs.find(body.pair, "pair")
        spec = build_solve_spec(body, pair, deterministic=pairs.deterministic)
        service.idle.keep_alive(parse_keep_alive(body.keep_alive))
        async with service.use_pair(spec.pair):
            prompt_ids = await service.encode_prompt(spec)
            return service.submit(
                spec,
                prompt_ids,
                run_id=body.id,
                continues=body.continues,
                caller=read_caller(request, body.priority or 0),
            )

    @router.post("/solve", openapi_extra=describe_body(SolveBody))
    async def solve(request: Request) -> Response:
        """Run a search. It is cancelled when the client disconnects, unless `detach` is set."""
        body = await read_body(request, SolveBody)
        handle = await submit(request, body)
        headers = {"X-FlashEdge-Run": handle.id}

        def leave() -> None:
            if not body.detach:
                handle.cancel(DISCONNECTED)  # no effect once the run is over

        if body.stream:
            return EventStream(_stream_queue_and_events(handle), on_close=leave, headers=headers)
        try:
            result = await run_while_connected(request.receive, handle.result())
            return Json(result, headers=headers)
        finally:
            leave()

    @router.post("/runs", status_code=202, openapi_extra=describe_body(SolveBody))
    async def create(request: Request) -> Response:
        """Queue a search and return at once."""
        body = await read_body(request, SolveBody)
        if body.stream:
            raise RequestError(
                "POST /v1/runs does not stream", hint="follow /v1/runs/{id}/events", param="stream"
            )
        return _accept(await submit(request, body))

    @router.get("/runs")
    async def listing(
        limit: Annotated[int, Query(ge=1, le=1000)] = 20,
        before: str | None = None,
        status: Status | None = None,
        contains: str | None = None,
    ) -> Response:
        """The runs, newest first. `before` is the last id of the previous page. `contains` is
        literal text in the problem, the answer or its path; upper and lower case are alike."""
        found = await service.runs(limit=limit + 1, before=before, status=status, text=contains)
        return Json({"object": "list", "data": found[:limit], "has_more": len(found) > limit})

    @router.get("/runs/{run_id}")
    async def get(
        run_id: str, wait_s: Annotated[float, Query(ge=0, le=MAX_WAIT_S)] = 0.0
    ) -> Response:
        """A run. If it waits, the answer has its position and the expected time until its start.
        With `wait_s`, the answer comes when the run is over, or after that many seconds."""
        handle = service.run(run_id)
        with suppress(FlashEdgeError, TimeoutError):  # the object holds the error
            async with asyncio.timeout(wait_s):
                await handle.result()
        return Json(handle.object())

    @router.get("/runs/{run_id}/events")
    async def events(
        request: Request,
        run_id: str,
        after: Annotated[str | None, Query(json_schema_extra={"pattern": "^[0-9]{1,18}$"})] = None,
    ) -> Response:
        """The run's events, from the first or from the one after `Last-Event-ID` (or `after`)."""
        start = request.headers.get("last-event-id") or after or "0"
        if not (start.isascii() and start.isdigit() and len(start) <= 18):
            raise RequestError(f"{start[:40]!r} is not an event number", param="after")
        return EventStream(_stream_events(service.run(run_id), int(start)))

    @router.post("/runs/{run_id}/repeat", status_code=202)
    async def repeat(request: Request, run_id: str) -> Response:
        """Queue a run's request once more, with the same early exit, as a new run."""
        spec = pin_early_exit(service.run(run_id).plan)
        async with service.use_pair(spec.pair):
            prompt_ids = spec.prompt_ids or await service.encode_prompt(spec)
            handle = service.submit(spec, prompt_ids, caller=read_caller(request, 0))
        return _accept(handle)

    @router.post("/runs/{run_id}/cancel")
    async def cancel(run_id: str) -> Response:
        """Cancel a run and return it. Has no effect on a run that is over."""
        handle = service.run(run_id)
        handle.cancel("cancelled by request")
        await asyncio.sleep(0)  # lets a queued run notice
        return Json(handle.object())

    @router.delete("/runs/{run_id}")
    async def delete(run_id: str) -> Response:
        service.delete(run_id)
        return Json({"id": run_id, "object": "run", "deleted": True})

    return router


def _accept(handle: RunHandle) -> Response:
    return Json(
        {"id": handle.id, "status": handle.status, **dataclasses.asdict(handle.estimate)},
        status_code=202,
        headers={"Location": f"/v1/runs/{handle.id}", "X-FlashEdge-Run": handle.id},
    )


async def _stream_queue_and_events(handle: RunHandle) -> AsyncGenerator[bytes]:
    """Yield a `queued` event at each new position, and each second if the expected times changed,
    then the run's events."""

    def frame_estimate(estimate: RunEstimate) -> bytes:
        return frame({"id": handle.id, **dataclasses.asdict(estimate)}, event="queued")

    sent, polls = handle.estimate, 0
    yield frame_estimate(sent)
    while (now := handle.estimate).position is not None:
        polls += 1
        if now.position != sent.position or (now != sent and polls % POLLS_PER_S == 0):
            sent = now
            yield frame_estimate(sent)
        await asyncio.sleep(QUEUE_POLL_S)
    async with aclosing(_stream_events(handle, 0)) as events:
        async for item in events:
            yield item


async def _stream_events(handle: RunHandle, after: int) -> AsyncGenerator[bytes]:
    """Yield the run's events up to the terminal one, or to the last one of an interrupted run."""
    async with aclosing(handle.events(after)) as source:
        async for seq, event in source:
            yield frame(to_json(event), event=type(event).__name__, id=seq)
