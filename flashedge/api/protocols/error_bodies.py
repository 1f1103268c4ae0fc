"""Errors in the form of the protocol that the client speaks, in whole answers and in streams. It
does not matter whether the guard, the switch or vLLM's handlers refuse the request.

OpenAI's protocols have the form of `api.failures`, Anthropic's
`{"type": "error", "error": {"type", "message"}}`. An error about a conversation that is too long
has the words by which the protocol's clients know that they have to shorten it.
"""

import json
import re
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any

from starlette.types import Message, Send

from flashedge.api.failures import build_error, build_error_object, dump_json
from flashedge.api.paths import CHAT, COMPLETIONS, MESSAGES, RESPONSES
from flashedge.api.sse import begins_stream, drop_length
from flashedge.engine.http_requests import TaggedRequest
from flashedge.errors import ContextOverflow, FlashEdgeError, RequestError

_OVERFLOWS = (
    re.compile(
        r"maximum context length is (?P<most>\d+) tokens"
        r".* contains (?P<least>at least )?(?P<has>\d+) input tokens"
    ),
    re.compile(r"maximum context length is (?P<most>\d+) tokens"),
    re.compile(r"(?P<has>\d+) tokens do not fit .* context of (?P<most>\d+) tokens"),
)
"""How vLLM's handlers and our generator say that a conversation is too long."""
_ERROR_EVENT = b"event: error\n"
_ERROR_CHUNK = b'data: {"error":'
"""How an error begins in a stream of chat completions or completions."""
_CODES = {404: "not_found", 409: "conflict", 413: "request_too_large", 503: "overloaded"}
"""The code of an error that vLLM's handlers found, by its status."""
_KINDS = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
}
"""Anthropic's type of an error, by its status."""


def build_messages_error(error: Mapping[str, Any], status: int) -> dict[str, Any]:
    """An error in Anthropic's form. error: the `error` object of an answer. A message about a
    conversation's length becomes the one that Anthropic's clients know."""
    message = str(error["message"])
    if found := _find_overflow(message):
        groups = found.groupdict()
        most, has = int(groups["most"]), groups.get("has")
        size = f"at least {most + 1}" if has is None else f"{groups.get('least') or ''}{has}"
        message = f"prompt is too long: {size} tokens > {most} maximum"
    usual = "invalid_request_error" if status < 500 else "api_error"
    return {"type": "error", "error": {"type": _KINDS.get(status, usual), "message": message}}


def build_protocol_error(error: Any, status: int, failure: FlashEdgeError | None) -> dict[str, Any]:
    """An error of vLLM's handlers in our form.

    error: the object in their body. failure: our own error, if it is why they refuse the request.
    """
    code = _CODES.get(status, (FlashEdgeError if status >= 500 else RequestError).code)
    if failure is not None and failure.http_status == status:
        code = failure.code
    message = str(error["message"])
    if status == ContextOverflow.http_status and _find_overflow(message) is not None:
        code = ContextOverflow.code
    return build_error_object(message, status, error.get("param"), code)


def _find_overflow(message: str) -> re.Match[str] | None:
    return next((found for each in _OVERFLOWS if (found := each.search(message))), None)


def rewrite_error(send: Send, convert: Callable[[Any, int], dict[str, Any]]) -> Send:
    """A `send` that puts a whole answer with an error status into another form.

    convert: makes the new body from the `error` object of the answer, and from its status.
    """
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
            with suppress(ValueError, KeyError, TypeError):  # an answer to HEAD is empty
                body = dump_json(convert(json.loads(body)["error"], start["status"]))
            start = drop_length(start)
            start["headers"].append((b"content-length", str(len(body)).encode()))
            await send(start)
            await send({"type": "http.response.body", "body": body})
            start = None

    return rewriting


class StreamFailures:
    """Passes one answer on to `send`, and puts an error within a stream into its protocol's form.

    vLLM's own stream of /v1/responses breaks off at an error, and its stream of /v1/messages says
    that the error was malformed.
    """

    def __init__(self, request: TaggedRequest, path: str, send: Send) -> None:
        self._request = request
        self._path = path
        self._send = send
        self._events = 0
        self._is_open = False

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self._is_open = begins_stream(message)
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
                self._is_open = False
        await self._send(message)

    async def end(self) -> bool:
        """End a stream of /v1/responses that its handler left open. Returns whether it did."""
        failure = self._request.failure
        if failure is None or not self._is_open or self._path != RESPONSES:
            return False
        body = build_error_event(failure, self._path, self._events)
        await self._send({"type": "http.response.body", "body": body, "more_body": False})
        return True


def _rewrite_chunk(sent: bytes, failure: FlashEdgeError | None) -> bytes:
    chunk, _, rest = sent.partition(b"\n\n")
    error = json.loads(chunk.removeprefix(b"data: "))["error"]
    code = error.get("code")
    status = code if isinstance(code, int) else 500 if failure is None else failure.http_status
    body = dump_json(build_protocol_error(error, status, failure))
    return b"data: " + body + b"\n\n" + rest


def build_error_event(error: FlashEdgeError, path: str, number: int = 0) -> bytes:
    """The event that ends a stream. number: its sequence number, which only
    /v1/responses has."""
    inner = build_error(error)["error"]
    if path == MESSAGES:
        data = build_messages_error(inner, error.http_status)
    else:
        fields = {name: inner[name] for name in ("code", "message", "param")}
        data = {"type": "error", **fields, "sequence_number": number}
    return _ERROR_EVENT + b"data: " + dump_json(data) + b"\n\n"
