"""Server-sent events, and clients that disconnect.

A stream's source runs in its own task from its first step to its `aclose`, so it may hold task
groups and timeouts across yields. When the client disconnects, the source is cancelled at once,
even in the middle of an await.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Coroutine, Mapping
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass
from typing import Any, TypeVar

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from flashedge.api.failures import RunFault, build_error, build_error_response, dump_json
from flashedge.errors import FlashEdgeError

log = logging.getLogger(__name__)
T = TypeVar("T")

DISCONNECTED = "the client disconnected"
"""Why a run is cancelled whose client has left."""
PING = b": ping\n\n"
OPENED = b": open\n\n"  # as first item it tells the client at once that the stream works
PING_S = 10.0
JOINED = 64
"""Most items that are ready at once and sent together."""
SEND_TIMEOUT_S = 60.0  # a client that reads nothing for so long counts as disconnected


def frame(data: Any, *, event: str | None = None, id: int | None = None) -> bytes:
    """One SSE message with `data` as JSON, which never holds a line break."""
    head = b"" if id is None else b"id: %d\n" % id
    if event is not None:
        head += b"event: " + event.encode() + b"\n"
    return head + b"data: " + dump_json(data) + b"\n\n"


@asynccontextmanager
async def closing(source: AsyncIterator[T]) -> AsyncIterator[AsyncIterator[T]]:
    """`source`, which is closed at the end of the block. Closing cancels what feeds it."""
    try:
        yield source
    finally:
        if isinstance(source, AsyncGenerator):
            await source.aclose()


class ClientGone(Exception):
    """The client closed its connection, so nobody reads an answer."""


async def run_while_connected(request: Request, work: Coroutine[Any, Any, T]) -> T:
    """The result of `work`. Cancels it and raises ClientGone when the client disconnects."""
    task = asyncio.create_task(work)
    gone = asyncio.create_task(_wait_for_disconnect(request.receive))
    try:
        await asyncio.wait({task, gone}, return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            raise ClientGone
        return task.result()
    finally:
        await _cancel_tasks(task, gone)


@dataclass(frozen=True, slots=True)
class _End:
    """The end of the source."""

    error: Exception | None
    """The exception that the source raised."""


class EventStream(Response):
    """A response that sends what `source` has at once, and pings while it has nothing.

    An error before the first item becomes an ordinary HTTP error. A later one is sent in the
    stream as the event `error`. `on_close` is called once at the end, even if the source never
    started.
    """

    media_type = "text/event-stream"

    def __init__(
        self,
        source: AsyncGenerator[bytes],
        *,
        on_close: Callable[[], None] = lambda: None,
        ping_s: float | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(
            headers={"Cache-Control": "no-cache", "X-Accel-Buffering": "no", **(headers or {})}
        )
        del self.headers["content-length"]
        self._source = source
        self._on_close = on_close
        self._ping_s = PING_S if ping_s is None else ping_s

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        queue: asyncio.Queue[bytes | _End] = asyncio.Queue(maxsize=JOINED)
        pump = asyncio.create_task(self._pump(queue))
        gone = asyncio.create_task(_wait_for_disconnect(receive))
        writer = asyncio.create_task(self._write(queue, scope, receive, send))
        try:
            await asyncio.wait({writer, gone}, return_when=asyncio.FIRST_COMPLETED)
            if writer.done():
                writer.result()
        finally:
            self._on_close()
            await _cancel_tasks(writer, gone, pump)

    async def _pump(self, queue: asyncio.Queue[bytes | _End]) -> None:
        end = _End(None)
        try:
            async with aclosing(self._source) as source:
                async for item in source:
                    await queue.put(item)
        except Exception as error:
            end = _End(error)
        await queue.put(end)

    async def _write(
        self, queue: asyncio.Queue[bytes | _End], scope: Scope, receive: Receive, send: Send
    ) -> None:
        started = False
        end: _End | None = None
        while end is None:
            items: list[bytes] = []
            try:
                async with asyncio.timeout(self._ping_s):
                    item = await queue.get()
            except TimeoutError:
                item = PING
            while isinstance(item, bytes):
                items.append(item)
                if queue.empty():
                    break
                item = queue.get_nowait()
            end = item if isinstance(item, _End) else None
            body = b"".join(items)
            if end is not None and end.error is not None:
                if not (started or body):
                    if not isinstance(end.error, FlashEdgeError):
                        raise end.error
                    await build_error_response(end.error)(scope, receive, send)
                    return
                body += frame(build_error(_translate_error(end.error)), event="error")
            try:
                async with asyncio.timeout(SEND_TIMEOUT_S):
                    if not started:
                        await send(self._head())
                        started = True
                    more = end is None
                    await send({"type": "http.response.body", "body": body, "more_body": more})
            except (TimeoutError, OSError):
                return

    def _head(self) -> dict[str, Any]:
        return {
            "type": "http.response.start",
            "status": self.status_code,
            "headers": self.raw_headers,
        }


def _translate_error(error: Exception) -> FlashEdgeError:
    """The error for the client. A bug is logged here and not described to the client."""
    if isinstance(error, FlashEdgeError):
        return error
    log.error("a stream failed", exc_info=error)
    return RunFault("a bug in FlashEdge", "internal_error", "flashedge logs shows it")


async def _wait_for_disconnect(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


async def _cancel_tasks(*tasks: asyncio.Task[Any]) -> None:
    """Cancel the tasks, wait for their end and ignore what they raise."""
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
