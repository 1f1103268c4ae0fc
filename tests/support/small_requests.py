"""Many small requests of every kind to a daemon's application, some of which are cancelled."""

import asyncio
import itertools
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from random import Random
from typing import Any

import httpx
import uvicorn

from flashedge.api.app import create_app
from flashedge.config import load_config
from flashedge.runtime.build import build
from flashedge.runtime.service import Service
from tests.support.random_bodies import CHAT, TOOL

COMPLETIONS, SOLVE = "/v1/completions", "/v1/solve"
AT_ONCE = 6
CANCELLED = 6
"""One request of so many is cancelled."""


class SmallRequests:
    """A service in this process on engines of its own, and a client that sends it requests."""

    def __init__(self, service: Service, client: httpx.AsyncClient) -> None:
        self.service = service
        self._client = client
        self._numbers = itertools.count()

    async def send_plain(self, count: int) -> int:
        """Send plain requests of several kinds and lengths. Returns how many were answered."""
        return await self._send(count, _build_plain)

    async def send_searches(self, count: int) -> int:
        """Send searches by every kind of strategy. Returns how many were answered."""
        return await self._send(count, _build_search)

    async def _send(self, count: int, build_body: Any) -> int:
        places = asyncio.Semaphore(AT_ONCE)

        async def send(number: int) -> bool:
            random = Random(number)
            path, body = build_body(random)
            async with places:
                try:
                    limit_s = random.uniform(0.0, 0.2) if number % CANCELLED == 0 else None
                    async with asyncio.timeout(limit_s):
                        answer = await self._client.post(path, json=body)
                except TimeoutError:
                    return False
            assert answer.status_code == 200, (path, body, answer.text)
            return True

        sent = [send(next(self._numbers)) for _ in range(count)]
        return sum(await asyncio.gather(*sent))

    async def settle(self) -> None:
        async with asyncio.timeout(30):
            while True:
                views = [await engine.view() for engine in self.engines]
                left = sum(view.running + view.waiting + view.blocks_used for view in views)
                if not left and not any(self.service.counts.values()):
                    return
                await asyncio.sleep(0.05)

    @property
    def engines(self) -> tuple[Any, Any]:
        served = self.service._loader.shown
        assert served is not None, "it is loaded at the start"
        return served._engines.generator, served._engines.verifier


def _say(random: Random) -> str:
    first, second = random.randrange(1, 90), random.randrange(1, 90)
    extra = " Think about it." * random.randrange(8)
    return f"Tom has {first} apples and buys {second}.{extra} How many has he now?"


def _build_plain(random: Random) -> tuple[str, dict[str, Any]]:
    text = _say(random)
    body: dict[str, Any] = {"model": "bundled", "max_tokens": random.randrange(1, 48)}
    if random.random() < 0.5:
        body["seed"] = random.randrange(1 << 20)
    if random.random() < 0.2:
        return COMPLETIONS, {**body, "prompt": text}
    body["messages"] = [{"role": "user", "content": text}]
    calls = {"tools": [TOOL], "tool_choice": "required", "max_tokens": 40}
    chosen = {"seed": 5, "deterministic": True}
    logprobs = {"logprobs": True, "top_logprobs": 1}
    kinds = [{}, {"stream": True}, {"n": 2}, logprobs, {"presence_penalty": 1.0}, chosen, calls]
    return CHAT, body | random.choice(kinds)


def _build_search(random: Random) -> tuple[str, dict[str, Any]]:
    if random.random() < 0.5:
        strategy = random.choice(["beam", "self_consistency", "mcts", "dvts", "best_of_n"])
        body = {"problem": _say(random), "strategy": strategy, "n": 4, "max_tokens": 48}
        return SOLVE, {**body, "seed": random.randrange(1 << 20)}
    model = random.choice(["bundled:beam-4", "bundled:self_consistency-4", "bundled:mcts-4"])
    message = {"role": "user", "content": _say(random)}
    streams = random.random() < 0.5
    return CHAT, {"model": model, "messages": [message], "max_tokens": 48, "stream": streams}


@asynccontextmanager
async def serve(home: Path, **settings: object) -> AsyncIterator[SmallRequests]:
    """Serve the bundled pair in this process. settings: `Config` fields."""
    config = load_config(settings, environ={"FLASHEDGE_HOME": str(home)})
    service = build(config)
    app = create_app(service, config)
    # The client reuses connections: one that ends while a request is on its way would fail it.
    options = uvicorn.Config(app, port=0, log_level="warning", timeout_keep_alive=3600)
    server = uvicorn.Server(options)
    serving = asyncio.create_task(server.serve())
    try:
        while (state := service.health().state) != "ready":
            assert state in ("starting", "unloaded"), service.health()
            await asyncio.sleep(0.05)
        port = server.servers[0].sockets[0].getsockname()[1]
        async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", timeout=60) as client:
            yield SmallRequests(service, client)
    finally:
        server.should_exit = True
        await serving
