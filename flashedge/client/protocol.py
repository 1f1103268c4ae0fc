"""What client and daemon send each other: headers, bodies, server-sent events, errors, and the
calls that the synchronous and the asynchronous client share."""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Generic, TypeVar

import httpx

from flashedge import errors, events
from flashedge.errors import DaemonError, FlashEdgeError, QueueFull, RequestError, RunInterrupted
from flashedge.events import Event
from flashedge.literal import join_surrogates
from flashedge.types import Message

OPEN_STATUSES = ("queued", "running")

LONGEST_NAME = 200
"""Characters that the name of a client or program may have in its header."""

CHAT = "/v1/chat/completions"
CUT_REPLY = "the daemon went away in the middle of its reply"
DONE = "[DONE]"
"""The data of the last frame of a chat's stream."""

MAX_STREAMS = 64
"""Most requests of a client at once, unless it asks for more."""

READ_TIMEOUT_S = 45.0  # the daemon pings a stream every ten seconds
_LOAD_TIMEOUT_S = 600.0  # large models take minutes to load

Reply = TypeVar("Reply")
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
    """The JSON value with `�` in place of each half surrogate. They come from texts that were cut
    within a character, and from command lines that are not UTF-8."""
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
    body: dict[str, Any] = {
        "model": model,
        "messages": [{"role": m.role, "content": m.content} for m in messages],
        "stream": True,
        "stream_options": {"include_usage": True},
        **{k: v for k, v in options.items() if v is not None},
    }
    sendable: dict[str, Any] = make_sendable(body)
    return sendable


# ---------------------------------------------------------------- server-sent events


@dataclass(frozen=True, slots=True, kw_only=True)
class Frame:
    event: str
    data: str
    id: str | None = None
    """Its own id. An earlier event's does not carry over."""


class FrameReader:
    """Cuts a stream into frames. Comments (pings) and an incomplete last frame are dropped."""

    def __init__(self) -> None:
        self._rest = b""

    def read(self, chunk: bytes) -> list[Frame]:
        """The frames that this chunk completes. Lines end with `\\n` or `\\r\\n`."""
        *whole, self._rest = (self._rest + chunk.replace(b"\r", b"")).split(b"\n\n")
        return [frame for block in whole if (frame := _parse_block(block)) is not None]


def _parse_block(block: bytes) -> Frame | None:
    fields: dict[str, list[str]] = {}
    for line in block.decode("utf-8", errors="replace").split("\n"):
        name, _, value = line.partition(":")
        fields.setdefault(name, []).append(value.removeprefix(" "))
    if "data" not in fields:
        return None
    (*_, event), (*_, number) = fields.get("event", ["message"]), fields.get("id", [None])
    return Frame(event=event, data="\n".join(fields["data"]), id=number)


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
    """The pieces in one frame. Raises the error that it reports."""
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
    other = RequestError if 400 <= status < 500 else DaemonError
    error = _BY_CODE.get(str(fields.get("code")), other)(message, hint=hint)
    error.param = param
    if isinstance(error, QueueFull):
        error.retry_after_s = retry_after_s
    return error


def build_run_error(failed: events.RunFailed) -> FlashEdgeError:
    return _BY_CODE.get(failed.code, FlashEdgeError)(failed.error, hint=failed.hint)


def translate_error(error: httpx.HTTPError, base_url: str) -> DaemonError:
    """The DaemonError that says what an error of httpx means to a user."""
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


# ---------------------------------------------------------------- calls


class Calls(Generic[Reply]):
    """Each call gives the JSON object that the daemon answers, or an awaitable of it.

    It raises the FlashEdgeError that the answer names, or DaemonError when the daemon can't be
    reached. name, program: see `build_headers`, which raises RequestError. max_streams: most
    requests at once; further ones wait for a free connection.
    """

    call_timeout_s: ClassVar[float]
    _connect: ClassVar[Callable[..., Any]]
    """The client of httpx to make."""

    def __init__(
        self,
        base_url: str,
        *,
        api_key: str | None = None,
        name: str | None = None,
        program: str | None = None,
        transport: httpx.BaseTransport | httpx.AsyncBaseTransport | None = None,
        max_streams: int = MAX_STREAMS,
    ) -> None:
        self.base_url = base_url
        self._http = self._connect(
            base_url=base_url,
            headers=build_headers(api_key=api_key, name=name, program=program),
            transport=transport,
            trust_env=False,  # no proxy between this client and its daemon
            timeout=httpx.Timeout(self.call_timeout_s, connect=5.0),
            limits=httpx.Limits(max_connections=max_streams, max_keepalive_connections=8),
        )

    def _json(self, method: str, path: str, **kwargs: Any) -> Reply:
        raise NotImplementedError

    def _patient(self, read_s: float | None) -> httpx.Timeout:
        """The timeout of a call whose answer may take `read_s`. None: any time."""
        return httpx.Timeout(self.call_timeout_s, read=read_s)

    def status(self) -> Reply:
        return self._json("GET", "/v1/status")

    def models(self) -> Reply:
        """`{"data": [{"id", …}]}`: each pair, and each pair with each strategy, `pair:beam`."""
        return self._json("GET", "/v1/models")

    def load(self) -> Reply:
        """Begin to load the engines. `health` tells how it goes on."""
        return self._json("POST", "/v1/load")

    def unload(self) -> Reply:
        return self._json("POST", "/v1/unload")

    def runs(
        self,
        *,
        limit: int = 20,
        before: str | None = None,
        status: str | None = None,
        contains: str | None = None,
    ) -> Reply:
        """`{"data": [summary…], "has_more": bool}`, newest first. before: only of runs older than
        this one; contains: only of runs with this text in the problem, the answer or its path."""
        options = {"limit": limit, "before": before, "status": status, "contains": contains}
        query = {name: value for name, value in options.items() if value is not None}
        return self._json("GET", "/v1/runs", params=query)

    def run(self, run: str, wait_s: float = 0.0) -> Reply:
        """The run's object, once it is over or after `wait_s`, at most half a minute."""
        waiting: dict[str, Any] = {}
        if wait_s:
            timeout = self._patient(self.call_timeout_s + wait_s)
            waiting = {"params": {"wait_s": wait_s}, "timeout": timeout}
        return self._json("GET", f"/v1/runs/{run}", **waiting)

    def submit(self, body: Mapping[str, Any], headers: Mapping[str, str] | None = None) -> Reply:
        """Start a run without following it: `{"id", "status", "position", …}`, once the pair is
        loaded."""
        sent, timeout = make_sendable(body), self._patient(_LOAD_TIMEOUT_S)
        return self._json("POST", "/v1/runs", json=sent, headers=headers, timeout=timeout)

    def repeat_run(self, run: str) -> Reply:
        """Start a run's request once more, as a new run: `{"id", "status", "position", …}`."""
        return self._json("POST", f"/v1/runs/{run}/repeat")

    def cancel(self, run: str) -> Reply:
        return self._json("POST", f"/v1/runs/{run}/cancel")

    def delete(self, run: str) -> Reply:
        return self._json("DELETE", f"/v1/runs/{run}")

    def score(self, body: Mapping[str, Any]) -> Reply:
        """Score solutions: see /v1/score. The answer may take any time."""
        sent = make_sendable(body)
        return self._json("POST", "/v1/score", json=sent, timeout=self._patient(None))
