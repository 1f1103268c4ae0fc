"""The asynchronous client over scripted HTTP, and following a run through lost connections."""

import json
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from dataclasses import dataclass
from typing import Any
from unittest.mock import AsyncMock, Mock

import httpx
import pytest

from flashedge.client.async_client import AsyncClient
from flashedge.client.follow import Reconnection, RetryPolicy, cancel_quietly, follow, retry
from flashedge.client.run_view import Numbered
from flashedge.errors import (
    DaemonError,
    EngineDead,
    FlashEdgeError,
    NotFound,
    QueueFull,
    RunInterrupted,
)
from flashedge.events import NodeScored, RunCancelled
from tests.support.fake_daemon import encode_events

Handler = Callable[[httpx.Request], httpx.Response]
SCORED = NodeScored(node=1, scores=(0.5,), score=0.5)
OVER = RunCancelled(reason="asked")


@dataclass
class Pieces(httpx.AsyncByteStream):
    body: bytes
    error: Exception | None

    async def __aiter__(self) -> AsyncIterator[bytes]:
        for start in range(0, len(self.body), 7):
            yield self.body[start : start + 7]
        if self.error is not None:
            raise self.error


def client(handler: Handler) -> AsyncClient:
    return AsyncClient("http://daemon", api_key="k", transport=httpx.MockTransport(handler))


def stream(
    *items: tuple[int, object], error: Exception | None = None, status: Any = ""
) -> AsyncClient:
    """A client of a daemon that sends these events in small pieces. status: the run's."""
    body = b": open\n\n" + encode_events(list(items))  # type: ignore[arg-type]

    def handler(request: httpx.Request) -> httpx.Response:
        if not request.url.path.endswith("/events"):
            return httpx.Response(200, json={"status": status})
        assert request.headers.get("last-event-id") == "2"
        return httpx.Response(200, stream=Pieces(body, error))

    return client(handler)


async def test_events_come_in_pieces_and_end_with_the_run() -> None:
    items = [(3, SCORED), (4, SCORED), (5, OVER)]
    async with stream(*items) as daemon:
        assert [i async for piece in daemon.events("r", after=2) for i in piece] == items


@pytest.mark.parametrize(
    ("error", "status", "kind", "said"),
    [
        (httpx.ReadError("cut"), "", DaemonError, "lost the daemon"),
        (None, "queued", DaemonError, "closed the stream"),
        (None, "running", DaemonError, "closed the stream"),
        (None, "interrupted", RunInterrupted, "was interrupted"),
        (None, "cancelled", RunInterrupted, "was interrupted"),
        (None, None, RunInterrupted, "was interrupted"),
    ],
)
async def test_a_stream_without_the_runs_end(
    error: Exception | None, status: str | None, kind: type[Exception], said: str
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
        listed = {"data": [{"id": "a"}], "has_more": False}
        assert await daemon.runs(limit=7, before="run-1") == await daemon.runs() == listed
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


STORY: list[Numbered] = [*((i, SCORED) for i in range(1, 6)), (6, OVER)]
QUICK = RetryPolicy(first_s=0.0, max_retries=2)


class Source:
    """Serves STORY in connections that end with the scripted errors, after some events each."""

    def __init__(self, *script: tuple[int, FlashEdgeError | None]) -> None:
        self.script = list(script)
        self.starts: list[int] = []

    async def events(self, run: str, after: int = 0) -> AsyncGenerator[tuple[Numbered, ...], None]:
        self.starts.append(after)
        count, error = self.script.pop(0)
        for item in STORY[after : after + count]:
            yield (item,)
        if error is not None:
            raise error


async def numbers(source: Source) -> list[int]:
    return [n async for piece in follow(source, "r", QUICK) for n, _ in piece]


def test_pauses_double_up_to_the_longest_and_an_event_resets_the_failures() -> None:
    policy = RetryPolicy(first_s=0.5, longest_s=8.0, max_retries=7)
    connection = Reconnection(policy, after=4)
    for number in (4, 7):
        assert connection.last == number
        pauses = [connection.fail() for _ in range(8)]
        assert pauses == [0.5, 1, 2, 4, 8, 8, 8, None], "it gives up"
        connection.receive(7)
    assert policy.find_pause_s(10**6) == 8


async def test_a_lost_connection_resumes_after_the_last_event() -> None:
    cut, away = DaemonError("cut"), DaemonError("away")
    source = Source((2, cut), (0, away), (3, cut), (1, None))
    assert await numbers(source) == [1, 2, 3, 4, 5, 6]
    assert source.starts == [0, 2, 2, 5]


async def test_a_daemon_that_stays_away_ends_the_following() -> None:
    source = Source((2, DaemonError("cut")), *[(0, DaemonError("away"))] * 3)
    with pytest.raises(DaemonError, match="went away during run r: away"):
        await numbers(source)
    assert source.starts == [0, 2, 2]


@pytest.mark.parametrize("error", [RunInterrupted("stopped"), NotFound("no run"), EngineDead("x")])
async def test_errors_of_the_run_are_not_retried(error: FlashEdgeError) -> None:
    source = Source((1, error))
    with pytest.raises(type(error)) as caught:
        await numbers(source)
    assert caught.value is error
    assert source.starts == [0]


async def call_with(*script: object) -> tuple[object, int]:
    """The result of a retried call that ends as scripted, and how many losses it reported."""
    call, on_loss = AsyncMock(side_effect=script), Mock()
    return await retry(call, QUICK, on_loss), on_loss.call_count


async def test_a_call_waits_for_a_full_queue_and_a_lost_daemon_but_not_for_ever() -> None:
    full = QueueFull("full", retry_after_s=0.0)
    script = [full] * 4 + [DaemonError("away"), full, EngineDead("died"), 7]
    assert await call_with(*script) == (7, 2)
    away = [DaemonError("away")] * 2
    assert await call_with(*away, full, *away, 7) == (7, 4), "an answer ends a row of failures"
    with pytest.raises(DaemonError, match="third"):
        await call_with(DaemonError("first"), DaemonError("second"), DaemonError("third"), 7)
    with pytest.raises(NotFound):
        await call_with(NotFound("no run"), 7)


async def test_a_run_is_cancelled_if_the_daemon_answers() -> None:
    asked = []

    def handler(request: httpx.Request) -> httpx.Response:
        asked.append(request.url.path)
        raise httpx.ConnectError("away")

    await cancel_quietly(client(handler), "r")
    assert asked == ["/v1/runs/r/cancel"]
