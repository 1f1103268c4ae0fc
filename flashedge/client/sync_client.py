"""A synchronous client of the daemon's HTTP API, for the command line."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import httpx

from flashedge import events
from flashedge.client import follow, protocol
from flashedge.client.protocol import LOAD_TIMEOUT_S, READ_TIMEOUT_S, Calls
from flashedge.errors import DaemonError, RunInterrupted
from flashedge.events import Event
from flashedge.types import Message


@dataclass(frozen=True, slots=True, kw_only=True)
class Queued:
    """The daemon accepted the run `id`."""

    id: str
    position: int | None
    """How many runs start before it. None once it runs."""
    starts_in_s: float | None = None
    """Seconds until it is expected to start. None where that is not known."""


class Client(Calls[dict[str, Any]]):
    """Use as a context manager, or call `close`."""

    call_timeout_s = READ_TIMEOUT_S
    _connect = httpx.Client
    _http: httpx.Client

    def close(self) -> None:
        self._http.close()

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def health(self, timeout_s: float = READ_TIMEOUT_S) -> dict[str, Any]:
        """The body of /health, also while the daemon starts or has failed. Raises DaemonError when
        the daemon can't be reached, or another program answers."""
        try:
            body = self._send("GET", "/health", timeout=timeout_s).json()
        except ValueError:
            body = None
        if not isinstance(body, dict) or "status" not in body:
            raise DaemonError(
                f"something other than FlashEdge answers at {self.base_url}",
                hint="choose another port with FLASHEDGE_PORT",
            )
        return body

    def solve(self, body: Mapping[str, Any]) -> Iterator[tuple[int, Event | Queued]]:
        """Start a run and follow it: `(0, Queued)` while it waits, then numbered events to the
        terminal one. If the connection breaks, the other events are fetched over a new one. Closing
        the iterator closes the connection. Unless the body says `detach`, the daemon cancels a run
        whose first connection has closed."""
        run: str | None = None
        last = 0
        try:
            sent = protocol.make_sendable({**body, "stream": True})
            timeout = self._build_timeout(LOAD_TIMEOUT_S)
            for frame in self._stream("POST", "/v1/solve", json=sent, timeout=timeout):
                if frame.event == "queued":
                    data = protocol.parse_frame(frame)
                    run, position = str(data["id"]), data.get("position")
                    yield 0, Queued(id=run, position=position, starts_in_s=data.get("starts_in_s"))
                    continue
                last, event = protocol.parse_event(frame, last)
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
        """Yield (number, event) of the run's events, from the one after `after` to the terminal
        one. Reconnects and raises like `follow.follow`."""
        connection = follow.Reconnection(follow.ATTENDED, after)
        path = protocol.locate_run(run) + "/events"
        while True:
            try:
                headers = {"Last-Event-ID": str(connection.last)}
                for frame in self._stream("GET", path, headers=headers):
                    number, event = protocol.parse_event(frame, connection.last)
                    connection.receive(number)
                    yield number, event
                    if isinstance(event, events.TERMINAL):
                        return
                raise protocol.explain_missing_end(run, self.run(run).get("status"))
            except RunInterrupted:
                raise
            except DaemonError as error:
                pause_s = connection.fail()
                if pause_s is None:
                    raise follow.explain_lost_run(run, error) from error
            time.sleep(pause_s)

    def chat(
        self, messages: Sequence[Message], *, model: str, **options: Any
    ) -> Iterator[protocol.ChatPiece]:
        """Stream one reply. `options` are fields of /v1/chat/completions. Raises the error that the
        daemon reports, or DaemonError when the reply is cut off."""
        body = protocol.build_chat_body(messages, model, options)
        timeout = self._build_timeout(LOAD_TIMEOUT_S)
        for frame in self._stream("POST", protocol.CHAT_PATH, json=body, timeout=timeout):
            if frame.data == protocol.DONE:
                return
            yield from protocol.parse_chat_frame(frame)
        raise DaemonError(protocol.CUT_REPLY)

    def _send(self, method: str, path: str, **kwargs: Any) -> httpx.Response:
        try:
            return self._http.request(method, path, **kwargs)
        except httpx.HTTPError as error:
            raise protocol.translate_error(error, self.base_url) from error

    def _call(self, method: str, path: str, **kwargs: Any) -> dict[str, Any]:
        return protocol.parse_json_object(self._send(method, path, **kwargs))

    def _stream(self, method: str, path: str, **kwargs: Any) -> Iterator[protocol.Frame]:
        try:
            with self._http.stream(method, path, **kwargs) as response:
                if response.is_error:
                    response.read()
                    protocol.parse_json_object(response)
                reader = protocol.FrameReader()
                for chunk in response.iter_bytes():
                    yield from reader.read(chunk)
        except httpx.HTTPError as error:
            raise protocol.translate_error(error, self.base_url) from error
