"""What client and daemon send each other: headers, bodies, server-sent events, errors."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import httpx

from flashedge import errors, events
from flashedge.errors import DaemonError, FlashEdgeError, QueueFull, RequestError, RunInterrupted
from flashedge.events import Event
from flashedge.literal import join_surrogates
from flashedge.types import Message

OPEN_STATUSES = ("queued", "running")

LONGEST_NAME = 200
CHAT = "/v1/chat/completions"
CUT_REPLY = "the daemon went away in the middle of its reply"
DONE = "[DONE]"
"""The data of the last frame of a chat's stream."""

_BY_CODE = {kind.code: kind for kind in errors.list_error_types()}


# ---------------------------------------------------------------- requests


def build_headers(*, api_key: str | None, name: str | None, program: str | None) -> dict[str, str]:
    """The headers of every request. name: the client's; clients take turns. program: what its
    requests are a part of. Raises RequestError for a name that a header can't hold."""
    headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
    for param, value in (("client", name), ("program", program)):
        if value is None:
            continue
        is_printable = value.isascii() and value.isprintable() and value.strip() == value
        if not (value and is_printable and len(value) <= LONGEST_NAME):
            raise RequestError(
                f"the {param} is named {value[:40]!r}",
                hint=f"use 1 to {LONGEST_NAME} letters, digits and signs, without accents",
                param=param,
            )
        headers[f"X-FlashEdge-{param.title()}"] = value
    return headers


def make_sendable(value: Any) -> Any:
    """The JSON value with `�` for half surrogates, which a text cut within a character has, and a
    command line that is not UTF-8."""
    match value:
        case str():
            return join_surrogates(value)
        case Mapping():
            return {make_sendable(key): make_sendable(item) for key, item in value.items()}
        case Sequence():
            return [make_sendable(item) for item in value]
    return value


def build_chat_body(
    messages: Sequence[Message], model: str, options: Mapping[str, Any]
) -> dict[str, Any]:
    """The body of a request that streams one reply. Options that are None are left out."""
    body = {
        "model": model,
        "messages": [{"role": m.role, "content": m.content} for m in messages],
        "stream": True,
        "stream_options": {"include_usage": True},
        **{k: v for k, v in options.items() if v is not None},
    }
    return dict(make_sendable(body))


# ---------------------------------------------------------------- server-sent events


@dataclass(frozen=True, slots=True, kw_only=True)
class Frame:
    event: str
    data: str
    id: str | None = None
    """Its own id. An earlier event's does not carry over."""


def parse_frames(chunks: Iterable[bytes]) -> Iterator[Frame]:
    """The frames of a stream. Comments (pings) and an incomplete last frame are dropped."""
    event, number, data = "", None, list[str]()
    for line in _split_lines(chunks):
        if not line:
            if data:
                yield Frame(event=event or "message", data="\n".join(data), id=number)
            event, number, data = "", None, []
            continue
        name, _, value = line.partition(":")
        value = value.removeprefix(" ")
        if name == "data":
            data.append(value)
        elif name == "event":
            event = value
        elif name == "id":
            number = value


def _split_lines(chunks: Iterable[bytes]) -> Iterator[str]:
    r"""Lines end with \n, \r\n or \r only."""
    rest = b""
    for chunk in chunks:
        rest += chunk
        is_ambiguous = rest.endswith(b"\r")  # a \n may follow in the next chunk
        body, tail = (rest[:-1], b"\r") if is_ambiguous else (rest, b"")
        *whole, rest = body.replace(b"\r\n", b"\n").replace(b"\r", b"\n").split(b"\n")
        rest += tail
        for line in whole:
            yield line.decode("utf-8", errors="replace")


def parse_frame(frame: Frame) -> dict[str, Any]:
    """The frame's data. Raises DaemonError if it is not a JSON object."""
    try:
        data = json.loads(frame.data)
    except ValueError:
        data = None
    if not isinstance(data, dict):
        raise DaemonError("the daemon sent an event that is no JSON object")
    return data


def parse_event(frame: Frame, last: int) -> tuple[int, Event]:
    """The frame's event and its number, which is `last` for a frame without an id. Raises the error
    that the frame reports, or DaemonError when it can't be read."""
    data = parse_frame(frame)
    if frame.event == "error" or ("error" in data and "type" not in data):
        raise parse_error(data, 500)
    number = int(frame.id) if frame.id and frame.id.isdigit() else last
    try:
        return number, events.from_json(data)
    except ValueError as error:
        raise DaemonError(
            f"the daemon sent what this client can't read: {error}",
            hint="flashedge down, then flashedge up, so that both are of one version",
        ) from error


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatPiece:
    text: str = ""
    reasoning: str = ""
    finish: str | None = None
    """Why the reply ended; only in one of the last parts."""
    usage: Mapping[str, Any] | None = None
    """Token counts of the whole reply; only in one of the last parts."""


def parse_chat_frame(frame: Frame) -> Iterator[ChatPiece]:
    """The parts in one frame. Raises the error that it reports."""
    data = parse_frame(frame)
    if "error" in data:
        raise parse_error(data, 500)
    for choice in data.get("choices") or [{}]:
        delta = choice.get("delta") or {}
        yield ChatPiece(
            text=delta.get("content") or "",
            reasoning=delta.get("reasoning_content") or "",
            finish=choice.get("finish_reason"),
            usage=data.get("usage"),
        )


# ---------------------------------------------------------------- replies and errors


def parse_json_object(response: httpx.Response) -> dict[str, Any]:
    """The body of a response. Raises the error that it reports, or DaemonError."""
    try:
        body = response.json()
    except ValueError:
        body = None
    if response.is_error:
        retry_after = response.headers.get("retry-after", "")
        raise parse_error(
            body if isinstance(body, dict) else {},
            response.status_code,
            retry_after_s=float(retry_after) if retry_after.isdigit() else 1.0,
        )
    if not isinstance(body, dict):
        request = response.request
        raise DaemonError(f"{request.method} {request.url.path}: the answer is no JSON object")
    return body


def parse_error(body: Mapping[str, Any], status: int, retry_after_s: float = 1.0) -> FlashEdgeError:
    """The error in `{"error": {message, code, param, hint?}}`, or else one made from `status`."""
    fields = body.get("error")
    fields = fields if isinstance(fields, dict) else {}
    message = str(fields.get("message") or f"the daemon answered HTTP {status}")
    hint, param = fields.get("hint"), fields.get("param")
    if status in (401, 403):
        return RequestError(message, hint=hint or "set FLASHEDGE_API_KEY to the daemon's key")
    kind = _BY_CODE.get(str(fields.get("code")))
    if kind is QueueFull:
        return QueueFull(message, retry_after_s=retry_after_s, hint=hint)
    if kind is None:
        kind = RequestError if 400 <= status < 500 else DaemonError
    return kind(message, hint=hint, param=param)


def build_run_error(failed: events.RunFailed) -> FlashEdgeError:
    kind = _BY_CODE.get(failed.code, FlashEdgeError)
    if kind is QueueFull:
        return QueueFull(failed.error, retry_after_s=1.0, hint=failed.hint)
    return kind(failed.error, hint=failed.hint)


def translate_error(error: httpx.HTTPError, base_url: str) -> DaemonError:
    """The only place where httpx's exceptions become ours."""
    if isinstance(error, httpx.ConnectError | httpx.ConnectTimeout):
        return DaemonError(f"no daemon answers at {base_url}", hint="flashedge up")
    if isinstance(error, httpx.TimeoutException):
        return DaemonError(f"the daemon at {base_url} does not answer", hint="flashedge ps")
    return DaemonError(f"lost the daemon at {base_url} ({type(error).__name__})")


def explain_missing_end(run: str, status: object) -> DaemonError:
    """The error of a stream that closed before the run's terminal event: an open run can be
    followed again, any other has lost its end with the daemon."""
    if status in OPEN_STATUSES:
        return DaemonError(f"the daemon closed the stream of run {run}")
    return RunInterrupted(
        f"run {run} was interrupted: the daemon stopped while it ran",
        hint=f"solve again; its events so far are kept: flashedge runs show {run}",
    )
