"""The daemon over HTTP for programs with an event loop: what the dashboard needs of `client`.

Exceptions out of any method are those of `client.Client`.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from typing import Any

import httpx

from flashedge import events
from flashedge.client.sse import frames
from flashedge.client.sync_client import from_response, numbered, translated
from flashedge.errors import DaemonError, RunInterrupted
from flashedge.events import Event

_READ_TIMEOUT_S = 45.0  # the daemon pings a stream every ten seconds
_CALL_TIMEOUT_S = 10.0
_MAX_STREAMS = 64


class AsyncClient:
    """Use as an async context manager, or call `close`."""

    def __init__(
        self,
        base_url: str,
        *,
        api_key: str | None = None,
        transport: httpx.AsyncBaseTransport | None = None,
    ) -> None:
        self.base_url = base_url
        headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
        self._http = httpx.AsyncClient(
            base_url=base_url,
            headers=headers,
            transport=transport,
            trust_env=False,
            timeout=httpx.Timeout(_CALL_TIMEOUT_S, connect=5.0),
            limits=httpx.Limits(max_connections=_MAX_STREAMS, max_keepalive_connections=8),
        )

    async def close(self) -> None:
        await self._http.aclose()

    async def __aenter__(self) -> AsyncClient:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def status(self) -> dict[str, Any]:
        return await self._json("GET", "/v1/status")

    async def runs(self, *, limit: int = 20) -> list[dict[str, Any]]:
        """Summaries, newest first."""
        return list((await self._json("GET", "/v1/runs", params={"limit": limit}))["data"])

    async def run(self, run: str) -> dict[str, Any]:
        return await self._json("GET", f"/v1/runs/{run}")

    async def submit(self, body: Mapping[str, Any]) -> dict[str, Any]:
        """Start a run that goes on by itself: `{"id", "status", "position"}`."""
        return await self._json("POST", "/v1/runs", json=dict(body))

    async def cancel(self, run: str) -> dict[str, Any]:
        return await self._json("POST", f"/v1/runs/{run}/cancel")

    async def delete(self, run: str) -> None:
        await self._json("DELETE", f"/v1/runs/{run}")

    async def events(
        self, run: str, after: int = 0
    ) -> AsyncGenerator[tuple[tuple[int, Event], ...]]:
        """The run's events after number `after`, in the pieces that the network brings.

        Ends after the terminal event. Raises DaemonError when cut off (take it up again after the
        last number seen), RunInterrupted when the daemon once ended under the run.
        """
        last = after
        async with aclosing(self._blocks(f"/v1/runs/{run}/events", str(after))) as blocks:
            async for block in blocks:
                items: list[tuple[int, Event]] = []
                for frame in frames([block]):
                    last, event = numbered(frame, last)
                    items.append((last, event))
                if items:
                    yield tuple(items)
                    if isinstance(items[-1][1], events.TERMINAL):
                        return
        status = (await self.run(run)).get("status")
        if status in ("queued", "running"):
            raise DaemonError(f"the daemon closed the stream of run {run}")
        raise RunInterrupted(f"run {run} has no end: the daemon stopped under it")

    # ------------------------------------------------------------ inner

    async def _json(self, method: str, path: str, **kwargs: Any) -> dict[str, Any]:
        try:
            response = await self._http.request(method, path, **kwargs)
        except httpx.HTTPError as error:
            raise translated(error, self.base_url) from error
        if response.is_error:
            raise from_response(response)
        try:
            body = response.json()
        except ValueError:
            body = None
        if not isinstance(body, dict):
            raise DaemonError(f"{method} {path}: the answer is no JSON object")
        return body

    async def _blocks(self, path: str, after: str) -> AsyncGenerator[bytes]:
        """Whole events of a stream, as many at a time as have come."""
        timeout = httpx.Timeout(_CALL_TIMEOUT_S, read=_READ_TIMEOUT_S)
        headers = {"Last-Event-ID": after}
        try:
            async with self._http.stream("GET", path, headers=headers, timeout=timeout) as response:
                if response.is_error:
                    await response.aread()
                    raise from_response(response)
                rest = b""
                async for chunk in response.aiter_bytes():
                    whole, end, rest = (rest + chunk).rpartition(b"\n\n")
                    if end:
                        yield whole + end
        except httpx.HTTPError as error:
            raise translated(error, self.base_url) from error
