"""Server-sent events, and clients that disconnect.

A stream's source runs in its own task from its first step to its `aclose`, so it may hold task
groups and timeouts across yields. When the client disconnects, the source is cancelled at once,
even in the middle of an await.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Coroutine, Mapping
from contextlib import aclosing, asynccontextmanager, suppress
from typing import Any, TypeVar

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Message, Receive, Scope, Send

from flashedge.api.failures import BUG, build_error, build_error_response, dump_json
from flashedge.errors import FlashEdgeError

log = logging.getLogger(__name__)
T = TypeVar("T")

DISCONNECTED = "the client disconnected"
"""Why a run is cancelled whose client has left."""
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
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(
            headers={"Cache-Control": "no-cache", "X-Accel-Buffering": "no", **(headers or {})}
        )
        del self.headers["content-length"]
        self._source = source
        self._on_close = on_close

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        queue: asyncio.Queue[bytes | Exception | None] = asyncio.Queue(maxsize=JOINED)
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

    async def _pump(self, queue: asyncio.Queue[bytes | Exception | None]) -> None:
        """Queue the source's items, and then None or the exception that ended it."""
        end: Exception | None = None
        try:
            async with aclosing(self._source) as source:
                async for item in source:
                    await queue.put(item)
        except Exception as error:
            end = error
        await queue.put(end)

    async def _write(
        self,
        queue: asyncio.Queue[bytes | Exception | None],
        scope: Scope,
        receive: Receive,
        send: Send,
    ) -> None:
        started = False
        item: bytes | Exception | None = b""
        while isinstance(item, bytes):
            try:
                async with asyncio.timeout(PING_S):
                    item = await queue.get()
            except TimeoutError:
                item = b": ping\n\n"
            body = b""
            while isinstance(item, bytes):
                body += item
                if queue.empty():
                    break
                item = queue.get_nowait()
            if isinstance(item, Exception):
                if not (started or body):
                    if not isinstance(item, FlashEdgeError):
                        raise item
                    await build_error_response(item)(scope, receive, send)
                    return
                if not isinstance(item, FlashEdgeError):
                    log.error("a stream failed", exc_info=item)
                    item = BUG
                body += frame(build_error(item), event="error")
            try:
                async with asyncio.timeout(SEND_TIMEOUT_S):
                    if not started:
                        head = {"status": self.status_code, "headers": self.raw_headers}
                        await send({"type": "http.response.start", **head})
                        started = True
                    more = isinstance(item, bytes)
                    await send({"type": "http.response.body", "body": body, "more_body": more})
            except (TimeoutError, OSError):
                return


async def _wait_for_disconnect(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


async def _cancel_tasks(*tasks: asyncio.Task[Any]) -> None:
    """Cancel the tasks, wait for their end and ignore what they raise."""
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


# ---------------------------------------------------------------- streams of vLLM's handlers


def begins_stream(message: Message) -> bool:
    """Whether an `http.response.start` begins a stream of server-sent events."""
    return any(
        name.lower() == b"content-type" and value.startswith(b"text/event-stream")
        for name, value in message["headers"]
    )


def drop_length(message: Message) -> Message:
    """An `http.response.start` without the length of its body, which a wrapper changes."""
    kept = [(name, v) for name, v in message["headers"] if name.lower() != b"content-length"]
    return {**message, "headers": kept}


@asynccontextmanager
async def keep_alive(send: Send) -> AsyncIterator[Send]:
    """A `send` that adds comments to a stream while nothing else is sent, until the block ends.

    A search may wait in the queue for minutes, and clients or proxies would give up. vLLM's own
    comments are off: they cover two protocols.
    """
    lock = asyncio.Lock()  # a comment may not stand inside an event
    sent_at = time.monotonic()
    task: asyncio.Task[None] | None = None

    async def comment() -> None:
        while True:
            silent_s = time.monotonic() - sent_at
            if silent_s < PING_S:
                await asyncio.sleep(PING_S - silent_s)
                continue
            body = b": keep-alive\n\n"
            await sending({"type": "http.response.body", "body": body, "more_body": True})

    async def sending(message: Message) -> None:
        nonlocal sent_at, task
        async with lock:
            await send(message)
            sent_at = time.monotonic()
        if message["type"] == "http.response.start":
            if begins_stream(message):
                task = asyncio.create_task(comment())
        elif not message.get("more_body", False) and task is not None:
            task.cancel()

    try:
        yield sending
    finally:
        if task is not None:
            task.cancel()
            with suppress(asyncio.CancelledError, OSError):
                await task
