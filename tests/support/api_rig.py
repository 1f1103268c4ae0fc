"""Ways to drive the HTTP layer over a FakeService: in process, and through a real server."""

import asyncio
import json
import socket
import threading
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import httpx
import uvicorn
from fastapi import FastAPI

from flashedge.api.app import create_app
from flashedge.config import load_config
from flashedge.daemon.http_connection import HEADER_BYTES, HttpConnection
from tests.support.fake_service import FakeService, fake_pair

T = TypeVar("T")
NOWHERE = str(Path(__file__).parent / "no-such-home")


def make_app(service: FakeService, judges: str = "steps", **settings: object) -> FastAPI:
    config = load_config(settings, environ={"FLASHEDGE_HOME": NOWHERE})
    return create_app(service, config, {service.default_pair: fake_pair(judges)})


def client_of(service: FakeService, judges: str = "steps", **settings: object) -> httpx.AsyncClient:
    """In process; a stream is delivered once it has ended. judges: of the pair's verifier."""
    app = make_app(service, judges, **settings)
    transport = httpx.ASGITransport(app, raise_app_exceptions=False)
    return httpx.AsyncClient(transport=transport, base_url="http://localhost")


async def ask(
    path: str, body: Any, service: FakeService | None = None, **options: Any
) -> tuple[FakeService, httpx.Response]:
    """The answer to one POST, and the service that was asked."""
    service = service or FakeService()
    async with client_of(service) as client:
        return service, await client.post(path, json=body, **options)


def keep_in(sent: list[Any]) -> Callable[[Any], Awaitable[None]]:
    """The `send` of an ASGI application, which appends each message."""

    async def send(message: Any) -> None:
        sent.append(message)

    return send


def frames(text: str) -> list[dict[str, Any]]:
    """SSE text as [{"id", "event", "data"}], without comments."""
    found = []
    for block in text.split("\n\n"):
        fields = dict(
            line.split(": ", 1) for line in block.split("\n") if line and not line.startswith(":")
        )
        if "data" in fields:
            done = fields["data"] == "[DONE]"
            fields["data"] = fields["data"] if done else json.loads(fields["data"])
            found.append(fields)
    return found


@dataclass
class Live:
    """A real uvicorn server on a loopback port, its loop in a thread of its own."""

    base_url: str
    port: int
    service: Any
    loop: asyncio.AbstractEventLoop

    def call(self, work: Callable[[], T]) -> T:
        """`work` in the server's loop."""

        async def run() -> T:
            return work()

        return asyncio.run_coroutine_threadsafe(run(), self.loop).result(5)

    def connect(self) -> socket.socket:
        return socket.create_connection(("127.0.0.1", self.port), timeout=5)


@contextmanager
def serving(app: FastAPI, service: Any) -> Iterator[Live]:
    listening = socket.create_server(("127.0.0.1", 0))
    port = listening.getsockname()[1]
    options = uvicorn.Config(
        app,
        http=HttpConnection,
        h11_max_incomplete_event_size=HEADER_BYTES,
        log_level="warning",
        timeout_graceful_shutdown=1,
    )
    server = uvicorn.Server(options)
    loops: list[asyncio.AbstractEventLoop] = []

    async def serve() -> None:
        loops.append(asyncio.get_running_loop())
        await server.serve(sockets=[listening])

    thread = threading.Thread(target=asyncio.run, args=(serve(),))
    thread.start()
    try:
        wait_until(lambda: server.started)
        yield Live(f"http://127.0.0.1:{port}", port, service, loops[0])
    finally:
        server.should_exit = True
        thread.join(10)
        listening.close()
    assert not thread.is_alive()


def wait_until(holds: Callable[[], object], timeout_s: float = 5.0) -> float:
    """Seconds until `holds`; fails the test after `timeout_s`."""
    began = time.monotonic()
    while not holds():
        if time.monotonic() - began > timeout_s:
            raise AssertionError("it did not come to hold")
        time.sleep(0.002)
    return time.monotonic() - began


def post_bytes(path: str, body: object) -> bytes:
    data = json.dumps(body)
    head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    return f"{head}Content-Length: {len(data)}\r\n\r\n{data}".encode()
