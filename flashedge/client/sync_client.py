"""The daemon over HTTP, for the command line and the dashboard. Knows only types, events, errors.

Exceptions out of any method: the FlashEdgeError that the daemon's answer names, or DaemonError
when it can't be reached.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import httpx

from flashedge import errors, events
from flashedge.client.sse import Frame, frames
from flashedge.errors import (
    DaemonError,
    FlashEdgeError,
    QueueFull,
    RequestError,
    RunInterrupted,
)
from flashedge.events import Event
from flashedge.types import Message

RECONNECTS = 4
RECONNECT_DELAY_S = 0.25
_READ_TIMEOUT_S = 45.0  # the daemon pings a stream every ten seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class Queued:
    """The run was accepted; `position` runs stand before it (None: it runs)."""

    id: str
    position: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatPiece:
    """Some of a streamed reply. `finish` and `usage` come with the last pieces."""

    text: str = ""
    reasoning: str = ""
    finish: str | None = None
    usage: Mapping[str, Any] | None = None


class Client:
    """A synchronous client. Use as a context manager, or call `close`."""

    def __init__(
        self,
        base_url: str,
        *,
        api_key: str | None = None,
        transport: httpx.BaseTransport | None = None,
    ) -> None:
        self.base_url = base_url
        headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
        self._http = httpx.Client(
            base_url=base_url,
            headers=headers,
            transport=transport,
            trust_env=False,  # a proxy has no business between us and our daemon
            timeout=httpx.Timeout(_READ_TIMEOUT_S, connect=5.0),
        )

    def close(self) -> None:
        self._http.close()

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # ------------------------------------------------------------ the daemon

    def health(self, timeout_s: float = _READ_TIMEOUT_S) -> dict[str, Any]:
        """The body of /health, whatever its status says."""
        response = self._send("GET", "/health", check=False, timeout=timeout_s)
        try:
            body = response.json()
        except ValueError:
            body = None
        if not isinstance(body, dict) or "status" not in body:
            raise DaemonError(
                f"something other than FlashEdge answers at {self.base_url}",
                hint="choose another port with FLASHEDGE_PORT",
            )
        return body

    def status(self) -> dict[str, Any]:
        return self._json("GET", "/v1/status")

    def models(self) -> list[dict[str, Any]]:
        return list(self._json("GET", "/v1/models")["data"])

    # ------------------------------------------------------------ runs

    def solve(self, body: Mapping[str, Any]) -> Iterator[tuple[int, Event | Queued]]:
        """Start a run and follow it: first `(0, Queued)`, then numbered events to the terminal one.

        A lost connection is taken up again after the last event seen. Closing the iterator
        closes the connection, which cancels the run unless the body says `detach`.
        """
        run: str | None = None
        last = 0
        try:
            for frame in self._stream("POST", "/v1/solve", json={**body, "stream": True}):
                if frame.event == "queued":
                    data = json_object(frame)
                    run = str(data["id"])
                    yield 0, Queued(id=run, position=data.get("position"))
                    continue
                last, event = numbered(frame, last)
                yield last, event
                if isinstance(event, events.TERMINAL):
                    return
        except DaemonError:
            if run is None:
                raise
        if run is None:
            raise DaemonError("the daemon closed the stream before it took the run")
        yield from self.events(run, after=last)

    def events(self, run: str, after: int = 0) -> Iterator[tuple[int, Event]]:
        """The run's events after number `after`, to its terminal one; reconnects when cut off."""
        last = after
        for attempt in range(RECONNECTS):
            try:
                headers = {"Last-Event-ID": str(last)}
                for frame in self._stream("GET", f"/v1/runs/{run}/events", headers=headers):
                    last, event = numbered(frame, last)
                    yield last, event
                    if isinstance(event, events.TERMINAL):
                        return
                if self.run(run).get("status") not in ("queued", "running"):
                    break
            except DaemonError as error:
                if attempt == RECONNECTS - 1:
                    raise DaemonError(
                        f"the daemon went away during run {run}: {error}",
                        hint=f"what was done is kept: flashedge up, then flashedge runs show {run}",
                    ) from error
            time.sleep(RECONNECT_DELAY_S * 2**attempt)
        raise RunInterrupted(
            f"run {run} was interrupted: the daemon stopped under it",
            hint=f"solve again; what it had is kept: flashedge runs show {run}",
        )

    def start_run(self, body: Mapping[str, Any]) -> dict[str, Any]:
        """Start a run that goes on by itself: `{"id", "status", "position"}`."""
        return self._json("POST", "/v1/runs", json=dict(body))

    def run(self, run: str) -> dict[str, Any]:
        return self._json("GET", f"/v1/runs/{run}")

    def runs(
        self, *, limit: int = 20, before: str | None = None, status: str | None = None
    ) -> dict[str, Any]:
        """`{"data": [summary...], "has_more": bool}`, newest first."""
        given = {"limit": limit, "before": before, "status": status}
        query = {k: v for k, v in given.items() if v is not None}
        return self._json("GET", "/v1/runs", params=query)

    def cancel(self, run: str) -> dict[str, Any]:
        return self._json("POST", f"/v1/runs/{run}/cancel")

    def delete(self, run: str) -> None:
        self._send("DELETE", f"/v1/runs/{run}")

    # ------------------------------------------------------------ chat

    def chat(
        self, messages: Sequence[Message], *, model: str, **options: Any
    ) -> Iterator[ChatPiece]:
        """Stream one reply. options: the fields of /v1/chat/completions."""
        body = {
            "model": model,
            "messages": [{"role": m.role, "content": m.content} for m in messages],
            "stream": True,
            "stream_options": {"include_usage": True},
            **{k: v for k, v in options.items() if v is not None},
        }
        for frame in self._stream("POST", "/v1/chat/completions", json=body):
            if frame.data == "[DONE]":
                return
            data = json_object(frame)
            if "error" in data:
                raise from_body(data, 500)
            usage = data.get("usage")
            for choice in data.get("choices") or [{}]:
                delta = choice.get("delta") or {}
                yield ChatPiece(
                    text=delta.get("content") or "",
                    reasoning=delta.get("reasoning_content") or "",
                    finish=choice.get("finish_reason"),
                    usage=usage,
                )
        raise DaemonError("the daemon went away in the middle of its reply")

    # ------------------------------------------------------------ inner

    def _send(self, method: str, path: str, *, check: bool = True, **kwargs: Any) -> httpx.Response:
        try:
            response = self._http.request(method, path, **kwargs)
        except httpx.HTTPError as error:
            raise translated(error, self.base_url) from error
        if check and response.is_error:
            raise from_response(response)
        return response

    def _json(self, method: str, path: str, **kwargs: Any) -> dict[str, Any]:
        response = self._send(method, path, **kwargs)
        try:
            body = response.json()
        except ValueError:
            body = None
        if not isinstance(body, dict):
            raise DaemonError(f"{method} {path}: the answer is no JSON object")
        return body

    def _stream(self, method: str, path: str, **kwargs: Any) -> Iterator[Frame]:
        try:
            with self._http.stream(method, path, **kwargs) as response:
                if response.is_error:
                    response.read()
                    raise from_response(response)
                yield from frames(response.iter_bytes())
        except httpx.HTTPError as error:
            raise translated(error, self.base_url) from error


def translated(error: httpx.HTTPError, base_url: str) -> DaemonError:
    """The only place where httpx's exceptions become ours."""
    if isinstance(error, httpx.ConnectError | httpx.ConnectTimeout):
        return DaemonError(f"no daemon answers at {base_url}", hint="flashedge up")
    if isinstance(error, httpx.TimeoutException):
        return DaemonError(f"the daemon at {base_url} does not answer", hint="flashedge ps")
    return DaemonError(f"lost the daemon at {base_url} ({type(error).__name__})")


def from_response(response: httpx.Response) -> FlashEdgeError:
    """The error that an HTTP answer stands for."""
    try:
        body = response.json()
    except ValueError:
        body = {}
    retry_after = response.headers.get("retry-after", "")
    return from_body(
        body if isinstance(body, dict) else {},
        response.status_code,
        retry_after_s=float(retry_after) if retry_after.isdigit() else 1.0,
    )


def from_body(body: Mapping[str, Any], status: int, retry_after_s: float = 1.0) -> FlashEdgeError:
    """The error of `{"error": {message, code, param, hint?}}`; else one made of `status`."""
    told = body.get("error")
    told = told if isinstance(told, dict) else {}
    message = str(told.get("message") or f"the daemon answered HTTP {status}")
    hint, param = told.get("hint"), told.get("param")
    if status in (401, 403):
        return RequestError(message, hint=hint or "set FLASHEDGE_API_KEY to the daemon's key")
    kind = _BY_CODE.get(str(told.get("code")))
    if kind is QueueFull:
        return QueueFull(message, retry_after_s=retry_after_s, hint=hint)
    if kind is None:
        kind = RequestError if 400 <= status < 500 else DaemonError
    return kind(message, hint=hint, param=param)


def from_event(failed: events.RunFailed) -> FlashEdgeError:
    """The error that ended a run."""
    kind = _BY_CODE.get(failed.code, FlashEdgeError)
    if kind is QueueFull:
        return QueueFull(failed.error, retry_after_s=1.0, hint=failed.hint)
    return kind(failed.error, hint=failed.hint)


_BY_CODE = {kind.code: kind for kind in errors.of_this_module()}


def json_object(frame: Frame) -> dict[str, Any]:
    """The frame's data. Raises DaemonError."""
    try:
        data = json.loads(frame.data)
    except ValueError:
        data = None
    if not isinstance(data, dict):
        raise DaemonError("the daemon sent an event that is no JSON object")
    return data


def numbered(frame: Frame, last: int) -> tuple[int, Event]:
    """The frame's event. Raises the error that it tells, or DaemonError."""
    data = json_object(frame)
    if frame.event == "error" or ("error" in data and "type" not in data):
        raise from_body(data, 500)
    number = int(frame.id) if frame.id and frame.id.isdigit() else last
    try:
        return number, events.from_json(data)
    except ValueError as error:
        raise DaemonError(
            f"the daemon sent what this client can't read: {error}",
            hint="flashedge down, then flashedge up, so that both are of one version",
        ) from error
