"""An asynchronous client of the daemon's HTTP API, for the dashboard, batches and evaluations."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Coroutine
from contextlib import aclosing
from typing import Any

import httpx

from flashedge import events
from flashedge.client import protocol
from flashedge.client.protocol import READ_TIMEOUT_S, Calls
from flashedge.events import Event


class AsyncClient(Calls[Coroutine[Any, Any, dict[str, Any]]]):
    """Use as an async context manager, or call `close`."""

    call_timeout_s = 10.0  # the daemon answers in milliseconds; the dashboard shows it if not
    _connect = httpx.AsyncClient
    _http: httpx.AsyncClient

    async def close(self) -> None:
        await self._http.aclose()

    async def __aenter__(self) -> AsyncClient:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def events(
        self, run: str, after: int = 0
    ) -> AsyncGenerator[tuple[tuple[int, Event], ...]]:
        """Yield (number, event) of the run's events, from the one after `after` to the terminal
        one, in groups as they arrive, over one connection; `follow.follow` reconnects. Raises the
        error that the daemon reports, DaemonError when the connection breaks, and RunInterrupted
        when the daemon ended before the run did."""
        last = after
        path, headers = protocol.locate_run(run) + "/events", {"Last-Event-ID": str(after)}
        timeout = self._build_timeout(READ_TIMEOUT_S)
        async with aclosing(self.stream("GET", path, headers=headers, timeout=timeout)) as pieces:
            async for frames in pieces:
                items: list[tuple[int, Event]] = []
                for frame in frames:
                    last, event = protocol.parse_event(frame, last)
                    items.append((last, event))
                if items:
                    yield tuple(items)
                    if isinstance(items[-1][1], events.TERMINAL):
                        return
        raise protocol.explain_missing_end(run, (await self.run(run)).get("status"))

    async def _call(self, method: str, path: str, **kwargs: Any) -> dict[str, Any]:
        try:
            return protocol.parse_json_object(await self._http.request(method, path, **kwargs))
        except httpx.HTTPError as error:
            raise protocol.translate_error(error, self.base_url) from error

    async def stream(
        self, method: str, path: str, **kwargs: Any
    ) -> AsyncGenerator[list[protocol.Frame]]:
        """Yield the frames of a stream in groups, as they arrive. kwargs: passed to httpx's
        `stream`. Raises the error that the daemon answers, or DaemonError."""
        try:
            async with self._http.stream(method, path, **kwargs) as response:
                if response.is_error:
                    await response.aread()
                    protocol.parse_json_object(response)
                reader = protocol.FrameReader()
                async for chunk in response.aiter_bytes():
                    if frames := reader.read(chunk):
                        yield frames
        except httpx.HTTPError as error:
            raise protocol.translate_error(error, self.base_url) from error
