"""The asynchronous client over scripted HTTP."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable

import httpx
import pytest

from flashedge.client.async_client import AsyncClient
from flashedge.errors import DaemonError, NotFound, QueueFull, RunInterrupted
from flashedge.events import NodeScored, RunCancelled
from tests.support.fake_daemon import encode_events

Handler = Callable[[httpx.Request], httpx.Response]
SCORED = NodeScored(node=1, scores=(0.5,), score=0.5)
OVER = RunCancelled(reason="asked")


class Pieces(httpx.AsyncByteStream):
    def __init__(self, body: bytes, size: int, error: Exception | None) -> None:
        self.pieces = [body[i : i + size] for i in range(0, len(body), size)]
        self.error = error

    async def __aiter__(self) -> AsyncIterator[bytes]:
        for piece in self.pieces:
            yield piece
        if self.error is not None:
            raise self.error


def client(handler: Handler) -> AsyncClient:
    return AsyncClient("http://daemon", api_key="k", transport=httpx.MockTransport(handler))


def stream(
    *items: tuple[int, object], size: int = 7, error: Exception | None = None, status: str = ""
) -> AsyncClient:
    """A client of a daemon that sends these events in small pieces. status: the run's."""
    body = b": open\n\n" + encode_events(list(items))  # type: ignore[arg-type]

    def handler(request: httpx.Request) -> httpx.Response:
        if not request.url.path.endswith("/events"):
            return httpx.Response(200, json={"status": status})
        assert request.headers.get("last-event-id") == "2"
        return httpx.Response(200, stream=Pieces(body, size, error))

    return client(handler)


@pytest.mark.parametrize("size", [1, 7, 64, 1000])
async def test_events_come_in_pieces_however_the_network_cuts(size: int) -> None:
    items = [(3, SCORED), (4, SCORED), (5, OVER)]
    async with stream(*items, size=size) as daemon:
        pieces = [piece async for piece in daemon.events("r", after=2)]
    assert [item for piece in pieces for item in piece] == items


@pytest.mark.parametrize(
    ("error", "status", "kind", "said"),
    [
        (httpx.ReadError("cut"), "", DaemonError, "lost the daemon"),
        (None, "running", DaemonError, "closed the stream"),
        (None, "interrupted", RunInterrupted, "was interrupted"),
    ],
)
async def test_a_stream_without_the_runs_end(
    error: Exception | None, status: str, kind: type[Exception], said: str
) -> None:
    got = []
    async with stream((3, SCORED), error=error, status=status) as daemon:
        with pytest.raises(kind, match=said) as caught:  # noqa: PT012
            async for piece in daemon.events("r", after=2):
                got.extend(piece)
    assert (got, type(caught.value)) == ([(3, SCORED)], kind)


async def test_calls_and_their_errors() -> None:
    def handler(request: httpx.Request) -> httpx.Response:
        assert request.headers["authorization"] == "Bearer k"
        match request.method, request.url.path:
            case "GET", "/v1/status":
                raise httpx.ConnectError("refused", request=request)
            case "GET", "/v1/runs":
                assert request.url.query.decode() in ("limit=7&before=run-1", "limit=20")
                return httpx.Response(200, json={"data": [{"id": "a"}], "has_more": False})
            case "POST", "/v1/runs":
                body = {"error": {"message": "full", "code": "queue_full"}}
                return httpx.Response(503, json=body, headers={"retry-after": "5"})
            case "POST", "/v1/score":
                return httpx.Response(200, json={"asked": json.loads(request.content)})
            case "POST", "/v1/runs/a/cancel":
                return httpx.Response(200, json={"status": "cancelled"})
        return httpx.Response(404, json={"error": {"message": "no run", "code": "not_found"}})

    async with client(handler) as daemon:
        assert (await daemon.runs(limit=7, before="run-1"))["data"] == [{"id": "a"}]
        assert (await daemon.runs())["has_more"] is False
        assert (await daemon.cancel("a"))["status"] == "cancelled"
        assert await daemon.score({"problem": "p\ud83d"}) == {"asked": {"problem": "p\ufffd"}}
        with pytest.raises(QueueFull):
            await daemon.submit({"problem": "p"})
        with pytest.raises(NotFound):
            await daemon.run("b")
        with pytest.raises(NotFound):
            _ = [piece async for piece in daemon.events("b")]
        with pytest.raises(DaemonError, match="no daemon answers") as caught:
            await daemon.status()
    assert caught.value.hint == "flashedge up"
