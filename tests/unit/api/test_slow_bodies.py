"""Bodies that arrive slowly: a deadline grows with what has arrived, not with each piece."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest

from flashedge.api import guard
from flashedge.api.guard import Guard

TIMEOUT_S = 0.3


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

    async def send(self, message: Any) -> None:
        self.sent.append(message)

    async def answer(self, scope: Any, receive: Any, send: Any) -> None:
        self.body = (await receive())["body"]

    async def run(self, max_bytes: int = 1 << 20) -> float:
        """Seconds that it took."""
        app = Guard(
            self.answer,
            max_bytes=max_bytes,
            api_key=None,
            local_only=True,
            host="127.0.0.1",
            body_timeout_s=TIMEOUT_S,
        )
        headers = [(b"host", b"localhost")]
        scope = {"type": "http", "method": "POST", "path": "/v1/solve", "headers": headers}
        began = time.monotonic()
        await app(scope, self.receive, self.send)
        return time.monotonic() - began


async def test_a_byte_now_and_then_does_not_keep_a_connection_open() -> None:
    exchange = Exchange(pieces=10**9, size=1, pause_s=0.02)
    took = await exchange.run()
    assert TIMEOUT_S <= took < TIMEOUT_S + 1
    assert exchange.sent[0]["status"] == 408
    assert (b"connection", b"close") in exchange.sent[0]["headers"]
    assert exchange.body is None


async def test_a_silent_client_is_refused_after_the_same_time() -> None:
    exchange = Exchange(pieces=2, size=1, pause_s=60)
    assert TIMEOUT_S <= await exchange.run() < TIMEOUT_S + 1
    assert exchange.sent[0]["status"] == 408


async def test_a_long_body_may_take_longer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(guard, "BODY_BYTES_PER_S", 1000)
    exchange = Exchange(pieces=20, size=100, pause_s=0.03)  # 3,333 bytes a second
    assert await exchange.run() > TIMEOUT_S
    assert exchange.body == b"x" * 2000
    assert exchange.sent == []


async def test_pieces_of_one_byte_are_one_body() -> None:
    exchange = Exchange(pieces=20_000, size=1, pause_s=0)
    await exchange.run()
    assert exchange.body == b"x" * 20_000
    too_long = Exchange(pieces=10**9, size=1, pause_s=0)
    await too_long.run(max_bytes=1024)
    assert too_long.sent[0]["status"] == 413
