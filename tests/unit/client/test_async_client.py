"""The asynchronous client over scripted HTTP."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable

import httpx
import pytest

from flashedge.client.async_client import AsyncClient
from flashedge.errors import DaemonError, NotFound, QueueFull, RunInterrupted
from flashedge.events import Event, NodeScored, RunCancelled, to_json

Handler = Callable[[httpx.Request], httpx.Response]
SCORED = NodeScored(node=1, scores=(0.5,), score=0.5)
OVER = RunCancelled(reason="asked")


class Pieces(httpx.AsyncByteStream):
    def __init__(self, *pieces: bytes, error: Exception | None = None) -> None:
        self.pieces, self.error = pieces, error

    async def __aiter__(self) -> AsyncIterator[bytes]:
        for piece in self.pieces:
            yield piece
        if self.error is not None:
            raise self.error


def client(handler: Handler) -> AsyncClient:
    return AsyncClient("http://daemon", api_key="k", transport=httpx.MockTransport(handler))


def frame(number: int, event: Event) -> bytes:
    return f"id: {number}\nevent: x\ndata: {json.dumps(to_json(event))}\n\n".encode()


@pytest.mark.parametrize("size", [1, 7, 64, 1000])
async def test_events_come_in_pieces_however_the_network_cuts(size: int) -> None:
    stream = b": open\n\n" + frame(3, SCORED) + frame(4, SCORED) + frame(5, OVER)

    def handler(request: httpx.Request) -> httpx.Response:
        assert request.headers.get("last-event-id") == "2"
        cut = (stream[i : i + size] for i in range(0, len(stream), size))
        return httpx.Response(200, stream=Pieces(*cut))

    async with client(handler) as daemon:
        pieces = [piece async for piece in daemon.events("r", after=2)]
    assert [item for piece in pieces for item in piece] == [(3, SCORED), (4, SCORED), (5, OVER)]


async def test_a_cut_stream_is_a_lost_daemon() -> None:
    def handler(request: httpx.Request) -> httpx.Response:
        return httpx.Response(200, stream=Pieces(frame(1, SCORED), error=httpx.ReadError("cut")))

    got = []
    async with client(handler) as daemon:
        with pytest.raises(DaemonError, match="lost the daemon"):  # noqa: PT012
            async for piece in daemon.events("r"):
                got.extend(piece)
    assert got == [(1, SCORED)]


@pytest.mark.parametrize(
    ("status", "error"), [("interrupted", RunInterrupted), ("running", DaemonError)]
)
async def test_a_log_without_an_end(status: str, error: type[Exception]) -> None:
    def handler(request: httpx.Request) -> httpx.Response:
        if request.url.path.endswith("/events"):
            return httpx.Response(200, stream=Pieces(frame(1, SCORED)))
        return httpx.Response(200, json={"status": status})

    async with client(handler) as daemon:
        with pytest.raises(error):
            async for _ in daemon.events("r"):
                pass


async def test_calls_and_their_errors() -> None:
    def handler(request: httpx.Request) -> httpx.Response:
        assert request.headers["authorization"] == "Bearer k"
        match request.method, request.url.path:
            case "GET", "/v1/status":
                return httpx.Response(200, json={"state": "ready"})
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
        assert await daemon.status() == {"state": "ready"}
        assert (await daemon.runs(limit=7, before="run-1"))["data"] == [{"id": "a"}]
        assert (await daemon.runs())["has_more"] is False
        assert (await daemon.cancel("a"))["status"] == "cancelled"
        assert await daemon.score({"problem": "p\ud83d"}) == {"asked": {"problem": "p\ufffd"}}
        with pytest.raises(QueueFull):
            await daemon.submit({"problem": "p"})
        with pytest.raises(NotFound):
            await daemon.run("b")
        with pytest.raises(NotFound):
            async for _ in daemon.events("b"):
                pass


async def test_no_daemon() -> None:
    def handler(request: httpx.Request) -> httpx.Response:
        raise httpx.ConnectError("refused", request=request)

    async with client(handler) as daemon:
        with pytest.raises(DaemonError, match="no daemon answers") as caught:
            await daemon.status()
    assert caught.value.hint == "flashedge up"
