"""A thousand clients that leave, and a daemon that is killed again and again.

Nothing may stay open, no answer that a client has got may be missing from the store, and the
store's log of each run must be whole. `scripts.bench.foundation.mixed_load` does the like with real
engines, which it kills, for an hour.
"""

from __future__ import annotations

import json
import random
import socket
import subprocess
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import httpx
import pytest

from flashedge.config import Config
from flashedge.daemon import control, files
from tests.support.api_rig import frames, post_bytes
from tests.support.commands import SIMULATED, wait_for

pytestmark = pytest.mark.long
"""Two minutes."""

DISCONNECTS, KILLS = 1000, 12
ASK = {"problem": "1 + 1?", "n": 8}
CHAT = {"model": "bundled", "messages": [{"role": "user", "content": "hi"}]}
SEARCH = {**CHAT, "model": "bundled:beam-4"}
KINDS: tuple[tuple[str, dict[str, Any]], ...] = (
    ("/v1/solve", ASK),
    ("/v1/solve", {**ASK, "stream": True}),
    ("/v1/runs", ASK),
    ("/v1/score", {"problem": "1 + 1?", "solution": ["Two.\n\nSo two.", "Three."]}),
    ("/v1/chat/completions", CHAT),
    ("/v1/chat/completions", {**CHAT, "stream": True, "n": 3}),
    ("/v1/chat/completions", {**SEARCH, "stream": True}),
    ("/v1/messages", {**SEARCH, "max_tokens": 50}),
    ("/v1/responses", {"model": "bundled:dvts-4", "input": "hi", "stream": True}),
)


class Served:
    """The daemon of one state folder, whichever process it is."""

    def __init__(self, config: Config, process: subprocess.Popen[bytes]) -> None:
        self.config, self.process = config, process

    @property
    def url(self) -> str:
        record = files.find(self.config)
        assert record is not None
        return record.url

    def get(self, path: str) -> Any:
        return httpx.get(f"{self.url}{path}", timeout=60).json()

    def kill(self) -> None:
        """Kill it, and start the next one."""
        self.process.kill()
        self.process.wait(60)
        self.process = control.start(self.config, {"port": 0}, SIMULATED)
        control.wait_ready(self.config, self.process, timeout_s=60)


@pytest.fixture
def served(config: Config, monkeypatch: pytest.MonkeyPatch) -> Served:
    monkeypatch.setenv("FLASHEDGE_QUEUE_LIMIT", "10000")
    process = control.start(config, {"port": 0}, SIMULATED)
    control.wait_ready(config, process, timeout_s=60)
    return Served(config, process)


def leave_in_the_middle(url: str, draw: random.Random) -> None:
    """Send a request of any kind, whole or in part, and close the connection some time later."""
    host, _, port = url.removeprefix("http://").rpartition(":")
    text = post_bytes(*draw.choice(KINDS))
    if draw.random() < 0.1:
        text = text[: draw.randrange(len(text))]
    connection = socket.create_connection((host, int(port)), timeout=60)
    connection.sendall(text)
    time.sleep(draw.random() * 0.04)
    if draw.random() < 0.3:
        connection.setblocking(False)
        with suppress(BlockingIOError):
            connection.recv(4096)
    connection.close()


def ask_while_it_is_killed(url: str, seed: int, kill: Callable[[], None]) -> dict[str, Any] | None:
    """An answer that arrived whole although the daemon dies about now."""
    body = {**ASK, "seed": seed, "stream": True}
    text, is_killed = "", False
    with (
        suppress(httpx.HTTPError),
        httpx.stream("POST", f"{url}/v1/solve", json=body, timeout=60) as answer,
    ):
        for line in answer.iter_lines():
            text += line + "\n"
            if seed % 2 and line == "event: StepCompleted" and not is_killed:
                kill()
                is_killed = True
    if not is_killed:
        kill()
    ends = [event for event in frames(text) if event.get("event") == "RunFinished"]
    return ends[0]["data"]["result"] if ends else None


def test_nothing_is_lost_and_nothing_stays(served: Served) -> None:
    draw = random.Random(0)
    results: dict[str, dict[str, Any]] = {}
    for round_ in range(KILLS):
        url = served.url
        for _ in range(DISCONNECTS // KILLS + 1):
            leave_in_the_middle(url, draw)
        found = ask_while_it_is_killed(url, round_, served.kill)
        if found is not None:
            results[found["id"]] = found
        whole = httpx.post(f"{served.url}/v1/solve", json={**ASK, "seed": 99}, timeout=60).json()
        results[whole["id"]] = whole

    wait_for(lambda: served.get("/v1/status")["runs"] == {"queued": 0, "running": 0}, 120)
    for engine in served.get("/v1/status")["engines"].values():
        view = engine["view"]
        assert (view["running"], view["waiting"], view["blocks_used"]) == (0, 0, 0)

    assert len(results) >= KILLS
    for run, result in results.items():
        stored = served.get(f"/v1/runs/{run}")
        assert stored == {**json.loads(json.dumps(result)), "stored": True}
    runs = served.get("/v1/runs?limit=1000")["data"]
    assert {run["status"] for run in runs} <= {"finished", "cancelled", "interrupted"}
    assert sum(run["status"] == "interrupted" for run in runs) >= KILLS // 2 - 1
    assert sum(run["status"] == "cancelled" for run in runs) > DISCONNECTS // 10
    for run in runs:
        log = frames(httpx.get(f"{served.url}/v1/runs/{run['id']}/events").text)
        assert [int(event["id"]) for event in log] == list(range(1, len(log) + 1))
        if run["status"] == "finished":
            assert log[-1]["event"] == "RunFinished"
