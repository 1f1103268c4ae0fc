"""Errors of Anthropic's protocol: `{"type": "error", "error": {"type", "message"}}`.

Whoever refuses a request, the guard, the switch or vLLM's handler, writes an error of OpenAI's form
or of its own. It is put into Anthropic's form here, behind all of them.
"""

from __future__ import annotations

import json
from typing import Any

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from flashedge.api.asgi import begins_stream
from flashedge.api.failures import dump_json
from flashedge.api.protocols.paths import MESSAGES

_KINDS = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
}


def build_messages_error(message: str, status: int) -> dict[str, Any]:
    usual = "invalid_request_error" if status < 500 else "api_error"
    return {"type": "error", "error": {"type": _KINDS.get(status, usual), "message": message}}


class MessagesErrors:
    """The middleware. Answers to other routes, streams and what is no error go on as they are."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and scope["path"].startswith(MESSAGES):
            send = rewrite_error(send)
        await self._app(scope, receive, send)


def rewrite_error(send: Send) -> Send:
    """A `send` that puts a whole answer with an error status into Anthropic's form."""
    start: Message | None = None
    body = b""

    async def rewriting(message: Message) -> None:
        nonlocal start, body
        if message["type"] == "http.response.start":
            if message["status"] < 400 or begins_stream(message):
                await send(message)
            else:
                start = message
            return
        if start is None:
            await send(message)
            return
        body += message.get("body", b"")
        if not message.get("more_body", False):
            body = _convert(body, start["status"])
            await send({**start, "headers": _measure(start, body)})
            await send({"type": "http.response.body", "body": body})
            start = None

    return rewriting


def _convert(body: bytes, status: int) -> bytes:
    try:
        message = json.loads(body)["error"]["message"]
    except (ValueError, KeyError, TypeError):
        return body  # the empty answer to HEAD
    return dump_json(build_messages_error(str(message), status))


def _measure(start: Message, body: bytes) -> list[tuple[bytes, bytes]]:
    """The headers of an answer with this body."""
    kept = [(name, v) for name, v in start["headers"] if name.lower() != b"content-length"]
    return [*kept, (b"content-length", str(len(body)).encode())]
