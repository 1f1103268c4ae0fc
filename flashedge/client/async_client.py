"""An asynchronous client of the daemon's HTTP API, for the dashboard, batches and evaluations.

Each method raises the FlashEdgeError that the daemon's answer names, or DaemonError when the daemon
can't be reached.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing
from typing import Any

import httpx

from flashedge import events
from flashedge.client.caller import build_headers, make_sendable
from flashedge.client.chat import (
    DONE,
    ChatPiece,
    build_chat_body,
    explain_cut_reply,
    parse_chat_frame,
)
from flashedge.client.chat import PATH as CHAT
from flashedge.client.follow import explain_missing_end
from flashedge.client.replies import (
    parse_error_response,
    parse_event,
    parse_json_object,
    translate_error,
)
from flashedge.client.sse import parse_frames
from flashedge.events import Event
from flashedge.types import Message

_READ_TIMEOUT_S = 45.0  # the daemon pings a stream every ten seconds
_CALL_TIMEOUT_S = 10.0
_LOAD_TIMEOUT_S = 600.0  # large models take minutes to load
MAX_STREAMS = 64


class AsyncClient:
    """Use as an async context manager, or call `close`."""

    def __init__(
        self,
        base_url: str,
        *,
        api_key: str | None = None,
        name: str | None = None,
        program: str | None = None,
        transport: httpx.AsyncBaseTransport | None = None,
        max_streams: int = MAX_STREAMS,
    ) -> None:
        """max_streams: most requests at once; further ones wait for a free connection.

        name, program: see `caller.build_headers`, which raises RequestError.
        """
        self.base_url = base_url
        headers = build_headers(api_key=api_key, name=name, program=program)
        self._http = httpx.AsyncClient(
            base_url=base_url,
            headers=headers,
            transport=transport,
            trust_env=False,
            timeout=httpx.Timeout(_CALL_TIMEOUT_S, connect=5.0),
            limits=httpx.Limits(max_connections=max_streams, max_keepalive_connections=8),
        )

    async def close(self) -> None:
        await self._http.aclose()

    async def __aenter__(self) -> AsyncClient:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def status(self) -> dict[str, Any]:
        return await self._json("GET", "/v1/status")

    async def runs(self, *, limit: int = 20, before: str | None = None) -> list[dict[str, Any]]:
        """Summaries, newest first; before: only of runs older than this one."""
        query = {"limit": limit} | ({} if before is None else {"before": before})
        return list((await self._json("GET", "/v1/runs", params=query))["data"])

    async def run(self, run: str, wait_s: float = 0.0) -> dict[str, Any]:
        """The run's object, once it is over or after `wait_s`, at most half a minute."""
        timeout = httpx.Timeout(_CALL_TIMEOUT_S, read=_CALL_TIMEOUT_S + wait_s)
        query = {"wait_s": wait_s} if wait_s else {}
        return await self._json("GET", f"/v1/runs/{run}", params=query, timeout=timeout)

    async def submit(
        self, body: Mapping[str, Any], headers: Mapping[str, str] | None = None
    ) -> dict[str, Any]:
        """Start a run without following it: `{"id", "status", "position", …}`.

        Waits until the pair is loaded, where it is not.
        """
        timeout = httpx.Timeout(_CALL_TIMEOUT_S, read=_LOAD_TIMEOUT_S)
        return await self._json(
            "POST", "/v1/runs", json=make_sendable(body), headers=headers, timeout=timeout
        )

    async def cancel(self, run: str) -> dict[str, Any]:
        return await self._json("POST", f"/v1/runs/{run}/cancel")

    async def delete(self, run: str) -> None:
        await self._json("DELETE", f"/v1/runs/{run}")

    async def events(
        self, run: str, after: int = 0
    ) -> AsyncGenerator[tuple[tuple[int, Event], ...]]:
        """The run's events after number `after` over one connection, in pieces as they arrive.

        Ends after the terminal event. `follow.follow` reconnects. Raises DaemonError when cut off,
        RunInterrupted when the daemon ended before the run did.
        """
        last = after
        async with aclosing(self._blocks(f"/v1/runs/{run}/events", str(after))) as blocks:
            async for block in blocks:
                items: list[tuple[int, Event]] = []
                for frame in parse_frames([block]):
                    last, event = parse_event(frame, last)
                    items.append((last, event))
                if items:
                    yield tuple(items)
                    if isinstance(items[-1][1], events.TERMINAL):
                        return
        raise explain_missing_end(run, (await self.run(run)).get("status"))

    async def score(self, body: Mapping[str, Any]) -> dict[str, Any]:
        """The scores of solutions, of their steps and of the whole: see /v1/score. There is no
        limit to the time that it takes."""
        timeout = httpx.Timeout(_CALL_TIMEOUT_S, read=None)
        return await self._json("POST", "/v1/score", json=make_sendable(body), timeout=timeout)

    async def chat(
        self,
        messages: Sequence[Message],
        *,
        model: str,
        headers: Mapping[str, str] | None = None,
        **options: Any,
    ) -> AsyncGenerator[ChatPiece]:
        """Stream one reply. `options` are fields of /v1/chat/completions.

        There is no limit to the time until the first part: the request may wait in the engine.
        """
        body = build_chat_body(messages, model, options)
        timeout = httpx.Timeout(_CALL_TIMEOUT_S, read=None)
        request = self._http.build_request(
            "POST", CHAT, json=make_sendable(body), headers=headers, timeout=timeout
        )
        async with aclosing(self._stream(request)) as blocks:
            async for block in blocks:
                for frame in parse_frames([block]):
                    if frame.data == DONE:
                        return
                    for piece in parse_chat_frame(frame):
                        yield piece
        raise explain_cut_reply()

    # ------------------------------------------------------------ inner

    async def _json(self, method: str, path: str, **kwargs: Any) -> dict[str, Any]:
        try:
            response = await self._http.request(method, path, **kwargs)
        except httpx.HTTPError as error:
            raise translate_error(error, self.base_url) from error
        if response.is_error:
            raise parse_error_response(response)
        return parse_json_object(response)

    async def _blocks(self, path: str, after: str) -> AsyncGenerator[bytes]:
        """Blocks of complete events of a run, as they arrive."""
        timeout = httpx.Timeout(_CALL_TIMEOUT_S, read=_READ_TIMEOUT_S)
        headers = {"Last-Event-ID": after}
        request = self._http.build_request("GET", path, headers=headers, timeout=timeout)
        async with aclosing(self._stream(request)) as blocks:
            async for block in blocks:
                yield block

    async def _stream(self, request: httpx.Request) -> AsyncGenerator[bytes]:
        """Blocks of complete events of a stream, as they arrive."""
        try:
            response = await self._http.send(request, stream=True)
            async with aclosing(response):
                if response.is_error:
                    await response.aread()
                    raise parse_error_response(response)
                rest = b""
                async for chunk in response.aiter_bytes():
                    whole, end, rest = (rest + chunk).rpartition(b"\n\n")
                    if end:
                        yield whole + end
        except httpx.HTTPError as error:
            raise translate_error(error, self.base_url) from error
