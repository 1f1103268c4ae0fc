"""Server-sent events, and clients that disconnect."""

import asyncio
import logging
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Coroutine, Mapping
from contextlib import aclosing, asynccontextmanager, suppress
from typing import Any, TypeVar

from starlette.datastructures import Headers
from starlette.responses import Response
from starlette.types import Message, Receive, Scope, Send

from flashedge.api.failures import BUG, build_error, dump_json
from flashedge.errors import FlashEdgeError

log = logging.getLogger(__name__)
T = TypeVar("T")

DISCONNECTED = "the client disconnected"
"""The reason for cancelling the run of a client that has left."""
OPENED = b": open\n\n"  # tells the client at once that the stream works
PING = b": ping\n\n"
PING_S = 10.0  # proxies often close a connection that is silent for 30 to 60 s
MAX_WAITING = 64
"""Most items of a source that wait for the client, and are sent together. Chosen by hand: many more
would take memory for each slow client, and with few a burst is sent in many small parts."""
SEND_TIMEOUT_S = 60.0
"""A client that reads nothing for so long is gone. Chosen by hand: slow links stall for seconds."""


def frame(data: Any, *, event: str | None = None, id: int | None = None) -> bytes:
    """One SSE message with `data` as JSON, which has no line break."""
    head = b"" if id is None else b"id: %d\n" % id
    if event is not None:
        head += b"event: " + event.encode() + b"\n"
    return head + b"data: " + dump_json(data) + b"\n\n"


class ClientGone(Exception):
    """The client closed its connection, so nobody would read the answer."""


async def run_while_connected(receive: Receive, work: Coroutine[Any, Any, T]) -> T:
    """The result of `work`. Cancels it and raises ClientGone when the client disconnects."""

    async def wait_for_disconnect() -> None:
        while (await receive())["type"] != "http.disconnect":
            pass

    task, gone = asyncio.create_task(work), asyncio.create_task(wait_for_disconnect())
    try:
        await asyncio.wait({task, gone}, return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            raise ClientGone
        return task.result()
    finally:
        await _cancel_tasks(task, gone)


class EventStream(Response):
    """A response that sends each item of `source` as it comes, and pings while none comes.

    The source runs in its own task from its first step to its `aclose`, so it may hold task groups
    and timeouts across yields. It is cancelled when the client disconnects, even in the middle of
    an await. Its error is sent as the event `error`. `on_close` is called once at the end, even if
    the source never started.
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
        queue: asyncio.Queue[bytes] = asyncio.Queue(maxsize=MAX_WAITING)
        pump = asyncio.create_task(self._pump(queue))
        try:
            with suppress(ClientGone, OSError):
                async with keep_alive(send) as sending:
                    await run_while_connected(receive, self._write(queue, sending))
        finally:
            self._on_close()
            await _cancel_tasks(pump)

    async def _pump(self, queue: asyncio.Queue[bytes]) -> None:
        """Queue the source's items, an event for the error that ended it, and b"" as the end."""
        try:
            async with aclosing(self._source) as source:
                async for item in source:
                    await queue.put(item)
        except Exception as error:
            if not isinstance(error, FlashEdgeError):
                log.exception("a stream failed")
                error = BUG
            await queue.put(frame(build_error(error), event="error"))
        await queue.put(b"")

    async def _write(self, queue: asyncio.Queue[bytes], send: Send) -> None:
        head = {"status": self.status_code, "headers": self.raw_headers}
        await send({"type": "http.response.start", **head})
        items = [OPENED]
        while items:
            while not queue.empty():
                items.append(queue.get_nowait())
            has_more = items[-1] != b""
            body = b"".join(items)
            await send({"type": "http.response.body", "body": body, "more_body": has_more})
            items = [await queue.get()] if has_more else []


async def _cancel_tasks(*tasks: asyncio.Task[Any]) -> None:
    """Cancel the tasks, wait for their end and ignore what they raise."""
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


def begins_stream(message: Message) -> bool:
    """Whether an `http.response.start` begins a stream of server-sent events."""
    kind = Headers(raw=message["headers"]).get("content-type", "")
    return kind.startswith(EventStream.media_type)


def drop_length(message: Message) -> Message:
    """An `http.response.start` without the length of its body, which the caller changes."""
    kept = [(name, v) for name, v in message["headers"] if name.lower() != b"content-length"]
    return {**message, "headers": kept}


@asynccontextmanager
async def keep_alive(send: Send) -> AsyncIterator[Send]:
    """A `send` that adds pings to a stream while nothing else is sent, until the block ends.

    A search may wait in the queue for minutes, and clients or proxies would give up. vLLM's
    keep-alive comments are off, since only two protocols have them. The `send` raises OSError when
    the client reads nothing for SEND_TIMEOUT_S.
    """
    lock = asyncio.Lock()  # a ping must not stand inside an event
    sent_at = time.monotonic()
    task: asyncio.Task[None] | None = None

    async def ping() -> None:
        while True:
            silent_s = time.monotonic() - sent_at
            if silent_s < PING_S:
                await asyncio.sleep(PING_S - silent_s)
                continue
            # An OSError ends the pings; the stream's next item raises it too.
            await sending({"type": "http.response.body", "body": PING, "more_body": True})

    async def sending(message: Message) -> None:
        nonlocal sent_at, task
        async with asyncio.timeout(SEND_TIMEOUT_S), lock:  # a TimeoutError is an OSError
            await send(message)
            sent_at = time.monotonic()
        if message["type"] == "http.response.start":
            if begins_stream(message):
                task = asyncio.create_task(ping())
        elif not message.get("more_body", False) and task is not None:
            task.cancel()

    try:
        yield sending
    finally:
        if task is not None:
            task.cancel()
            with suppress(asyncio.CancelledError, OSError):
                await task
