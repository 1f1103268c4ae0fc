"""Wrappers of an ASGI `send`, and what they ask of the message that begins an answer."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

from starlette.types import Message, Send

from flashedge.api import sse

_COMMENT = b": keep-alive\n\n"


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
            if silent_s < sse.PING_S:
                await asyncio.sleep(sse.PING_S - silent_s)
                continue
            await sending({"type": "http.response.body", "body": _COMMENT, "more_body": True})

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
