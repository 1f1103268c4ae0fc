"""Streams say something now and then, and never inside an event."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from flashedge.api.sse import PING, keep_alive

START = {"type": "http.response.start", "status": 200}
STREAM = {**START, "headers": [(b"content-type", b"text/event-stream")]}
WHOLE = {**START, "headers": [(b"content-type", b"application/json")]}


def part(body: bytes, more: bool = True) -> dict[str, Any]:
    return {"type": "http.response.body", "body": body, "more_body": more}


class Client:
    def __init__(self, send_s: float = 0.0) -> None:
        self.got: list[bytes] = []
        self._send_s = send_s
        self._sends = False

    async def send(self, message: Any) -> None:
        assert not self._sends, "two at once"
        self._sends = True
        await asyncio.sleep(self._send_s)
        self._sends = False
        if "body" in message:
            self.got.append(message["body"])


@pytest.fixture(autouse=True)
def often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("flashedge.api.sse.PING_S", 0.05)


async def test_a_silent_stream_gets_comments_and_a_busy_one_does_not() -> None:
    client = Client()
    async with keep_alive(client.send) as send:
        await send(STREAM)
        await asyncio.sleep(0.18)
        assert set(client.got) == {PING}
        client.got.clear()
        for _ in range(20):
            await send(part(b"x"))
            await asyncio.sleep(0.005)
        assert client.got == [b"x"] * 20
        await send(part(b"", more=False))
        await asyncio.sleep(0.12)
    assert client.got[20:] == [b""], "nothing after the end"


async def test_a_whole_answer_gets_none() -> None:
    client = Client()
    async with keep_alive(client.send) as send:
        await send(WHOLE)
        await asyncio.sleep(0.12)
        await send(part(b"{}", more=False))
    assert client.got == [b"{}"]


async def test_a_slow_client_gets_one_thing_at_a_time() -> None:
    client = Client(send_s=0.03)
    async with keep_alive(client.send) as send:
        await send(STREAM)
        for _ in range(5):
            await asyncio.sleep(0.04)
            await send(part(b"x"))
    assert client.got.count(b"x") == 5


async def test_a_client_that_left_ends_the_comments() -> None:
    async def send(message: Any) -> None:
        if message.get("body") == PING:
            raise OSError("gone")

    async with keep_alive(send) as sending:
        await sending(STREAM)
        await asyncio.sleep(0.12)
