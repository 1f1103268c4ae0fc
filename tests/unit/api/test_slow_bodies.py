"""Bodies that arrive slowly: a deadline grows with what has arrived, not with each piece."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest

from flashedge.api import guard
from flashedge.api.guard import Guard
from flashedge.config import load_config
from tests.support.api_rig import keep_in

TIMEOUT_S = 0.3


@pytest.fixture(autouse=True)
def short_timeout(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(guard, "BODY_TIMEOUT_S", TIMEOUT_S)


class Exchange:
    """One request to a Guard, whose body comes in pieces so many seconds apart."""

    def __init__(self, pieces: int, size: int, pause_s: float) -> None:
        self.left, self.size, self.pause_s = pieces, size, pause_s
        self.sent: list[Any] = []
        self.body: bytes | None = None

    async def receive(self) -> Any:
        await asyncio.sleep(self.pause_s)
        self.left -= 1
        body = b"x" * self.size
        return {"type": "http.request", "body": body, "more_body": self.left > 0}

    async def answer(self, scope: Any, receive: Any, send: Any) -> None:
        self.body = (await receive())["body"]

    async def run(self, max_bytes: int = 1 << 20) -> float:
        """Seconds that it took."""
        app = Guard(self.answer, load_config({"max_request_bytes": max_bytes}, {}))
        headers = [(b"host", b"localhost")]
        scope = {"type": "http", "method": "POST", "path": "/v1/solve", "headers": headers}
        began = time.monotonic()
        await app(scope, self.receive, keep_in(self.sent))
        return time.monotonic() - began


@pytest.mark.parametrize("pause_s", [0.02, 60])
async def test_a_byte_now_and_then_or_none_does_not_keep_a_connection_open(pause_s: float) -> None:
    exchange = Exchange(pieces=10**9, size=1, pause_s=pause_s)
    assert TIMEOUT_S <= await exchange.run() < TIMEOUT_S + 1
    assert exchange.sent[0]["status"] == 408
    assert (b"connection", b"close") in exchange.sent[0]["headers"]
    assert exchange.body is None


async def test_a_long_body_may_take_longer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(guard, "BODY_BYTES_PER_S", 1000)
    exchange = Exchange(pieces=20, size=100, pause_s=0.03)  # 3,333 bytes a second
    assert await exchange.run() > TIMEOUT_S
    assert exchange.body == b"x" * 2000
    assert exchange.sent == []


async def measure_piece(pieces: int) -> float:
    """Processor time of each piece of a body."""
    exchange = Exchange(pieces, size=1000, pause_s=0)
    began = time.process_time()
    await exchange.run(max_bytes=32 << 20)
    assert exchange.body == b"x" * 1000 * pieces
    return (time.process_time() - began) / pieces


async def test_a_piece_costs_the_same_however_many_came_before(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(guard, "BODY_TIMEOUT_S", 30)
    early = min([await measure_piece(500) for _ in range(3)])
    assert await measure_piece(20_000) < 5 * early


async def test_a_body_of_pieces_without_end_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(guard, "BODY_TIMEOUT_S", 30)
    too_long = Exchange(pieces=10**9, size=1, pause_s=0)
    await too_long.run(max_bytes=1024)
    assert too_long.sent[0]["status"] == 413
