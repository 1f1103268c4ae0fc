"""What client and daemon send each other: headers, bodies, server-sent events, errors, and the
calls that the synchronous and the asynchronous client share."""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Generic, TypeVar
from urllib.parse import quote

import httpx

from flashedge import errors, events
from flashedge.errors import DaemonError, FlashEdgeError, QueueFull, RequestError, RunInterrupted
from flashedge.events import Event
from flashedge.literal import join_surrogates
from flashedge.types import Message

OPEN_STATUSES = ("queued", "running")
"""Statuses of a run that is not over."""

LONGEST_NAME = 200
"""Most characters of a client's or program's name. The daemon cuts a longer one. Chosen by hand:
room for any path or address, and a thousand such names take less than a megabyte."""

CHAT_PATH = "/v1/chat/completions"
CUT_REPLY = "the daemon went away in the middle of its reply"
DONE = "[DONE]"
"""The data of the last frame of a chat's stream."""

MAX_STREAMS = 64
"""Most requests that a client has open at once, unless its caller chooses another number. Chosen by
hand: more than a daemon runs and queues by default, and far fewer than the files it may open."""

READ_TIMEOUT_S = 45.0
"""Longest silence of a stream. The daemon pings it every ten seconds: a few pings may be late."""

CONNECT_TIMEOUT_S = 5.0  # a daemon that is alive accepts within milliseconds

LOAD_TIMEOUT_S = 600.0
"""Longest wait for an answer that needs a loaded pair. Large models take minutes to load."""

Reply = TypeVar("Reply")
_BY_CODE = {kind.code: kind for kind in errors.list_error_types()}


def build_headers(*, api_key: str | None, name: str | None, program: str | None) -> dict[str, str]:
    """Build the headers of every request. name: the client's, since the daemon lets clients take
    turns. program: the name of the program that the requests belong to. Raises RequestError for a
    name that a header can't hold."""
    headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
    for param, value in (("client", name), ("program", program)):
        if value is None:
            continue
        is_printable = value.isascii() and value.isprintable() and value.strip() == value
        if not (value and is_printable and len(value) <= LONGEST_NAME):
            raise RequestError(
                f"the {param} is named {value[:40]!r}",
                hint=f"use 1 to {LONGEST_NAME} ASCII letters, digits and signs",
                param=param,
            )
        headers[f"X-FlashEdge-{param.title()}"] = value
    return headers


def locate_run(run: str) -> str:
    """Build the path of a run. Users type ids, so any character may be in one. Raises NotFound for
    an id that would lead to another path of the daemon."""
    if "/" in run or run in ("", ".", ".."):
        raise errors.NotFound(f"no run {run!r}", hint="`flashedge runs ls` lists them", param="id")
    return "/v1/runs/" + quote(run, safe="", errors="replace")


def make_sendable(value: Any) -> Any:
    """Replace lone surrogates in a JSON value by `�`, since UTF-8 can't encode them. They come from
    texts cut within a character, and from command lines that are not UTF-8."""
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
    """Build the body of a request that streams one reply. Options that are None are left out."""
    body: dict[str, Any] = {
        "model": model,
        "messages": [{"role": m.role, "content": m.content} for m in messages],
        "stream": True,
        "stream_options": {"include_usage": True},
        **{k: v for k, v in options.items() if v is not None},
    }
    return dict(make_sendable(body))


@dataclass(frozen=True, slots=True, kw_only=True)
class Frame:
    event: str
    data: str
    id: str | None = None
    """The frame's own id. Unlike in a browser, the id before it does not carry over."""


class FrameReader:
    """Splits a stream into frames. Comments (pings) and an incomplete last frame are dropped."""

    def __init__(self) -> None:
        self._rest = b""

    def read(self, chunk: bytes) -> list[Frame]:
        """Return the frames that this chunk completes. Lines end with `\\n` or `\\r\\n`."""
        *whole, self._rest = (self._rest + chunk.replace(b"\r", b"")).split(b"\n\n")
        return [frame for block in whole if (frame := _parse_block(block)) is not None]


def _parse_block(block: bytes) -> Frame | None:
    fields: dict[str, list[str]] = {}
    for line in block.decode("utf-8", errors="replace").split("\n"):
        name, _, value = line.partition(":")
        fields.setdefault(name, []).append(value.removeprefix(" "))
    if "data" not in fields:
        return None
    return Frame(
        event=fields.get("event", ["message"])[-1],
        data="\n".join(fields["data"]),
        id=fields["id"][-1] if "id" in fields else None,
    )


def parse_frame(frame: Frame) -> dict[str, Any]:
    """Parse the frame's data. Raises DaemonError if it is not a JSON object."""
    try:
        data = json.loads(frame.data)
    except ValueError:
        data = None
    if not isinstance(data, dict):
        raise DaemonError("the daemon sent an event that is no JSON object")
    return data


def parse_event(frame: Frame, last: int) -> tuple[int, Event]:
    """Parse the frame's number and event. The number of a frame without an id is `last`, that of
    the event before it. Raises the error that the frame reports, or DaemonError when the frame
    can't be read."""
    data = parse_frame(frame)
    if frame.event == "error" or ("error" in data and "type" not in data):  # RunFailed has both
        raise parse_error(data, 500)
    number = int(frame.id) if frame.id and frame.id.isdecimal() else last
    try:
        return number, events.from_json(data)
    except ValueError as error:
        raise DaemonError(
            f"the daemon sent what this client can't read: {error}",
            hint="flashedge down, then flashedge up, so that both are of one version",
        ) from error


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatPiece:
    """What one frame adds to the reply."""

    text: str = ""
    reasoning: str = ""
    finish: str | None = None
    """OpenAI's `finish_reason`. None before the reply's end."""
    usage: Mapping[str, Any] | None = None
    """OpenAI's `usage`, the token counts of the whole reply. None before its end."""


def parse_chat_frame(frame: Frame) -> Iterator[ChatPiece]:
    """Yield the pieces in one frame. Raises the error that the frame reports."""
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


def parse_json_object(response: httpx.Response) -> dict[str, Any]:
    """Parse the body of a response. Raises the error that the body reports, or DaemonError when it
    is no JSON object."""
    try:
        body = response.json()
    except ValueError:
        body = None
    if response.is_error:
        retry_after = response.headers.get("retry-after", "")
        raise parse_error(
            body if isinstance(body, dict) else {},
            response.status_code,
            retry_after_s=float(retry_after) if retry_after.isdecimal() else 1.0,
        )
    if not isinstance(body, dict):
        request = response.request
        raise DaemonError(f"{request.method} {request.url.path}: the answer is no JSON object")
    return body


def parse_error(body: Mapping[str, Any], status: int, retry_after_s: float = 1.0) -> FlashEdgeError:
    """Build the error that `{"error": {message, code, param, hint?}}` describes. What is missing
    there follows from the HTTP status."""
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
    """Say what an error of httpx means to a user."""
    if isinstance(error, httpx.ConnectError | httpx.ConnectTimeout):
        return DaemonError(f"no daemon answers at {base_url}", hint="flashedge up")
    if isinstance(error, httpx.TimeoutException):
        return DaemonError(f"the daemon at {base_url} does not answer", hint="flashedge ps")
    return DaemonError(f"lost the daemon at {base_url} ({type(error).__name__})")


def explain_missing_end(run: str, status: object) -> DaemonError:
    """Build the error for an event stream that closed before the run's terminal event. A run that
    is still open can be followed again; any other was interrupted when its daemon ended."""
    if status in OPEN_STATUSES:
        return DaemonError(f"the daemon closed the stream of run {run}")
    return RunInterrupted(
        f"run {run} was interrupted: the daemon stopped while it ran",
        hint=f"solve again; its events so far are kept: flashedge runs show {run}",
    )


class Calls(Generic[Reply]):
    """The calls of the HTTP API. Each returns the JSON object that the daemon answers, or an
    awaitable of it.

    A call raises the FlashEdgeError that the answer names, or DaemonError when the daemon can't be
    reached. name, program: see `build_headers`, which raises RequestError. max_streams: most
    requests at once; a further one waits for a free connection, at most `call_timeout_s`.
    """

    call_timeout_s: ClassVar[float]
    """Longest silence before a call fails, except where the call says otherwise."""
    _connect: ClassVar[Callable[..., Any]]
    """httpx's Client or AsyncClient."""

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
            timeout=httpx.Timeout(self.call_timeout_s, connect=CONNECT_TIMEOUT_S),
            limits=httpx.Limits(max_connections=max_streams),
        )

    def _call(self, method: str, path: str, **kwargs: Any) -> Reply:
        raise NotImplementedError

    def _build_timeout(self, read_s: float | None) -> httpx.Timeout:
        """Build the timeout of a call that may wait `read_s` for its answer. None sets no limit."""
        return httpx.Timeout(self.call_timeout_s, connect=CONNECT_TIMEOUT_S, read=read_s)

    def status(self) -> Reply:
        return self._call("GET", "/v1/status")

    def models(self) -> Reply:
        """`{"data": [{"id", …}]}`. An id names a pair, or a pair and a strategy: `bundled:beam`."""
        return self._call("GET", "/v1/models")

    def load(self) -> Reply:
        """Begin to load the engines. The answer does not wait for them."""
        return self._call("POST", "/v1/load")

    def unload(self) -> Reply:
        return self._call("POST", "/v1/unload")

    def runs(
        self,
        *,
        limit: int = 20,
        before: str | None = None,
        status: str | None = None,
        contains: str | None = None,
    ) -> Reply:
        """`{"data": [summary…], "has_more": bool}`: at most `limit` runs, newest first. before:
        list older runs than this one; status: runs with this status; contains: runs with this text
        in the problem, the answer or its path."""
        options = {"limit": limit, "before": before, "status": status, "contains": contains}
        query = {name: value for name, value in options.items() if value is not None}
        return self._call("GET", "/v1/runs", params=query)

    def run(self, run: str, wait_s: float = 0.0) -> Reply:
        """The run's object. The daemon answers when it is over, or after `wait_s` (0 to 30)."""
        waiting: dict[str, Any] = {}
        if wait_s:
            timeout = self._build_timeout(self.call_timeout_s + wait_s)
            waiting = {"params": {"wait_s": wait_s}, "timeout": timeout}
        return self._call("GET", locate_run(run), **waiting)

    def submit(self, body: Mapping[str, Any], headers: Mapping[str, str] | None = None) -> Reply:
        """Start a run without following it: `{"id", "status", "position", …}`. The daemon answers
        once the run's pair is loaded."""
        sent, timeout = make_sendable(body), self._build_timeout(LOAD_TIMEOUT_S)
        return self._call("POST", "/v1/runs", json=sent, headers=headers, timeout=timeout)

    def repeat_run(self, run: str) -> Reply:
        """Start a run's request once more, as a new run. Answers as `submit` does."""
        timeout = self._build_timeout(LOAD_TIMEOUT_S)
        return self._call("POST", locate_run(run) + "/repeat", timeout=timeout)

    def cancel(self, run: str) -> Reply:
        return self._call("POST", locate_run(run) + "/cancel")

    def delete(self, run: str) -> Reply:
        return self._call("DELETE", locate_run(run))

    def score(self, body: Mapping[str, Any]) -> Reply:
        """Score solutions: `body` is that of /v1/score. There is no limit on the wait."""
        sent = make_sendable(body)
        return self._call("POST", "/v1/score", json=sent, timeout=self._build_timeout(None))
