"""A synchronous client of the daemon's HTTP API, for the command line.

Each method raises the FlashEdgeError that the daemon's answer names, or DaemonError when the daemon
can't be reached.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import httpx

from flashedge import events
from flashedge.client import follow
from flashedge.client.caller import build_headers, make_sendable
from flashedge.client.chat import (
    DONE,
    ChatPiece,
    build_chat_body,
    explain_cut_reply,
    parse_chat_frame,
)
from flashedge.client.chat import PATH as CHAT
from flashedge.client.replies import (
    parse_error_response,
    parse_event,
    parse_frame,
    parse_json_object,
    translate_error,
)
from flashedge.client.sse import Frame, parse_frames
from flashedge.errors import DaemonError, RunInterrupted
from flashedge.events import Event
from flashedge.types import Message

_READ_TIMEOUT_S = 45.0  # the daemon pings a stream every ten seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class Queued:
    """The daemon accepted the run."""

    id: str

    position: int | None
    """Runs that wait before it. None while it runs."""

    starts_in_s: float | None = None
    """When it is expected to start. None where that is not known."""


class Client:
    """A synchronous client. Use as a context manager, or call `close`."""

    def __init__(
        self,
        base_url: str,
        *,
        api_key: str | None = None,
        name: str | None = None,
        program: str | None = None,
        transport: httpx.BaseTransport | None = None,
    ) -> None:
        """name, program: see `caller.build_headers`, which raises RequestError."""
        self.base_url = base_url
        headers = build_headers(api_key=api_key, name=name, program=program)
        self._http = httpx.Client(
            base_url=base_url,
            headers=headers,
            transport=transport,
            trust_env=False,  # no proxy between this client and its daemon
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
        """The body of /health, also while the daemon starts or has failed."""
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

    def load(self) -> None:
        """Begin to load the engines. `health` tells how it goes on."""
        self._json("POST", "/v1/load")

    def unload(self) -> None:
        """Unload the engines once nothing uses them."""
        self._json("POST", "/v1/unload")

    def models(self) -> list[dict[str, Any]]:
        return list(self._json("GET", "/v1/models")["data"])

    # ------------------------------------------------------------ runs

    def solve(self, body: Mapping[str, Any]) -> Iterator[tuple[int, Event | Queued]]:
        """Start a run and follow it: `(0, Queued)` while it waits, then numbered events to the
        terminal one.

        A lost connection is resumed after the last event received. Closing the iterator closes the
        connection, which cancels the run unless the body says `detach`.
        """
        run: str | None = None
        last = 0
        try:
            sent = make_sendable({**body, "stream": True})
            for frame in self._stream("POST", "/v1/solve", json=sent):
                if frame.event == "queued":
                    data = parse_frame(frame)
                    run = str(data["id"])
                    yield (
                        0,
                        Queued(
                            id=run,
                            position=data.get("position"),
                            starts_in_s=data.get("starts_in_s"),
                        ),
                    )
                    continue
                last, event = parse_event(frame, last)
                yield last, event
                if isinstance(event, events.TERMINAL):
                    return
        except DaemonError:
            if run is None:
                raise
        if run is None:
            raise DaemonError("the daemon closed the stream before it accepted the run")
        yield from self.events(run, after=last)

    def events(self, run: str, after: int = 0) -> Iterator[tuple[int, Event]]:
        """The run's events after number `after` to the terminal one, reconnecting when cut off.

        Raises RunInterrupted when the daemon ended before the run did, DaemonError when it stays
        away, NotFound when it does not know the run.
        """
        connection = follow.Reconnection(follow.ATTENDED, after)
        while True:
            try:
                headers = {"Last-Event-ID": str(connection.last)}
                for frame in self._stream("GET", f"/v1/runs/{run}/events", headers=headers):
                    number, event = parse_event(frame, connection.last)
                    connection.receive(number)
                    yield number, event
                    if isinstance(event, events.TERMINAL):
                        return
                raise follow.explain_missing_end(run, self.run(run).get("status"))
            except RunInterrupted:
                raise
            except DaemonError as error:
                pause_s = connection.fail()
                if pause_s is None:
                    raise follow.explain_lost_run(run, error) from error
            time.sleep(pause_s)

    def start_run(self, body: Mapping[str, Any]) -> dict[str, Any]:
        """Start a run without following it: `{"id", "status", "position", …}`."""
        return self._json("POST", "/v1/runs", json=make_sendable(body))

    def repeat_run(self, run: str) -> dict[str, Any]:
        """Start a run's request once more, as a new run: `{"id", "status", "position", …}`."""
        return self._json("POST", f"/v1/runs/{run}/repeat")

    def run(self, run: str) -> dict[str, Any]:
        return self._json("GET", f"/v1/runs/{run}")

    def runs(
        self,
        *,
        limit: int = 20,
        before: str | None = None,
        status: str | None = None,
        contains: str | None = None,
    ) -> dict[str, Any]:
        """`{"data": [summary...], "has_more": bool}`, newest first. contains: only those with this
        text in the problem, the answer or its path."""
        options = {"limit": limit, "before": before, "status": status, "contains": contains}
        query = {k: v for k, v in options.items() if v is not None}
        return self._json("GET", "/v1/runs", params=query)

    def cancel(self, run: str) -> dict[str, Any]:
        return self._json("POST", f"/v1/runs/{run}/cancel")

    def delete(self, run: str) -> None:
        self._send("DELETE", f"/v1/runs/{run}")

    # ------------------------------------------------------------ scores and chat

    def score(self, body: Mapping[str, Any]) -> dict[str, Any]:
        """The scores of solutions, of their steps and of the whole: see /v1/score. There is no
        limit to the time that it takes."""
        timeout = httpx.Timeout(_READ_TIMEOUT_S, read=None)
        return self._json("POST", "/v1/score", json=make_sendable(body), timeout=timeout)

    def chat(
        self, messages: Sequence[Message], *, model: str, **options: Any
    ) -> Iterator[ChatPiece]:
        """Stream one reply. `options` are fields of /v1/chat/completions."""
        body = build_chat_body(messages, model, options)
        for frame in self._stream("POST", CHAT, json=make_sendable(body)):
            if frame.data == DONE:
                return
            yield from parse_chat_frame(frame)
        raise explain_cut_reply()

    # ------------------------------------------------------------ inner

    def _send(self, method: str, path: str, *, check: bool = True, **kwargs: Any) -> httpx.Response:
        try:
            response = self._http.request(method, path, **kwargs)
        except httpx.HTTPError as error:
            raise translate_error(error, self.base_url) from error
        if check and response.is_error:
            raise parse_error_response(response)
        return response

    def _json(self, method: str, path: str, **kwargs: Any) -> dict[str, Any]:
        return parse_json_object(self._send(method, path, **kwargs))

    def _stream(self, method: str, path: str, **kwargs: Any) -> Iterator[Frame]:
        try:
            with self._http.stream(method, path, **kwargs) as response:
                if response.is_error:
                    response.read()
                    raise parse_error_response(response)
                yield from parse_frames(response.iter_bytes())
        except httpx.HTTPError as error:
            raise translate_error(error, self.base_url) from error
