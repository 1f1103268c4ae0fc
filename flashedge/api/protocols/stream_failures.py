"""Ends a protocol's stream with the reason, where vLLM's handler can't say it.

A stream of responses breaks off when an error meets it, and one of messages says that its own error
was malformed. Chat completions say it in a form of vLLM's own.
"""

from __future__ import annotations

import json
from typing import Any

from starlette.types import Message, Send

from flashedge.api.asgi import begins_stream
from flashedge.api.failures import build_error, dump_json
from flashedge.api.protocols.error_bodies import build_messages_error, build_protocol_error
from flashedge.api.protocols.paths import CHAT, COMPLETIONS, MESSAGES, RESPONSES
from flashedge.engine.http_requests import TaggedRequest
from flashedge.errors import FlashEdgeError

_ERROR_EVENT = b"event: error\n"
_ERROR_CHUNK = b'data: {"error":'
"""The one of chat completions and completions."""


class StreamFailures:
    """Passes one answer on to `send`."""

    def __init__(self, request: TaggedRequest, path: str, send: Send) -> None:
        self._request = request
        self._path = path
        self._send = send
        self._events = 0
        self._can_fail = False
        """Whether a stream is open."""

    async def send(self, message: Message) -> None:
        """Pass a part of the answer on."""
        if message["type"] == "http.response.start":
            self._can_fail = begins_stream(message)
        else:
            body = message.get("body", b"")
            if self._path == RESPONSES:  # its error event has a number
                self._events += (b"\n" + body).count(b"\nevent: ")
            failure = self._request.failure
            if self._path == MESSAGES and failure is not None and body.startswith(_ERROR_EVENT):
                message = {**message, "body": build_error_event(failure, self._path)}
            elif self._path in (CHAT, COMPLETIONS) and body.startswith(_ERROR_CHUNK):
                message = {**message, "body": _rewrite_chunk(body, failure)}
            if not message.get("more_body", False):
                self._can_fail = False
        await self._send(message)

    async def end(self) -> bool:
        """End a stream that its handler has left. Returns whether there was one to end."""
        failure = self._request.failure
        if failure is None or not self._can_fail or self._path != RESPONSES:
            return False
        body = build_error_event(failure, self._path, self._events)
        await self._send({"type": "http.response.body", "body": body, "more_body": False})
        return True


def _rewrite_chunk(body: bytes, failure: FlashEdgeError | None) -> bytes:
    chunk, _, rest = body.partition(b"\n\n")
    told = json.loads(chunk.removeprefix(b"data: "))["error"]
    code = told.get("code")
    status = code if isinstance(code, int) else 500 if failure is None else failure.http_status
    told = build_protocol_error(told, status, failure)
    return b"data: " + dump_json(told) + b"\n\n" + rest


def build_error_event(error: FlashEdgeError, path: str, number: int = 0) -> bytes:
    """The event that ends a stream of messages or responses. number: of the event."""
    inner = build_error(error)["error"]
    data: dict[str, Any]
    if path == MESSAGES:
        data = build_messages_error(inner["message"], error.http_status)
    else:
        told = {name: inner[name] for name in ("code", "message", "param")}
        data = {"type": "error", **told, "sequence_number": number}
    return _ERROR_EVENT + b"data: " + dump_json(data) + b"\n\n"
