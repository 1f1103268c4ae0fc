"""HTTP over the real Service, store and driver; only the engines are simulated."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from flashedge.api.app import create_app
from flashedge.config import load_config
from tests.support import api_rig
from tests.support.sim_daemon import build_service


@pytest.fixture(scope="module")
def live(tmp_path_factory: pytest.TempPathFactory) -> Iterator[api_rig.Live]:
    home = tmp_path_factory.mktemp("home")
    config = load_config({"queue_limit": 100}, environ={"FLASHEDGE_HOME": str(home)})
    service = build_service(config)
    with api_rig.serving(create_app(service, config), service) as server:
        api_rig.wait_until(lambda: httpx.get(f"{server.base_url}/health").status_code == 200)
        yield server


def test_a_run_is_the_same_live_stored_and_replayed(live: api_rig.Live) -> None:
    ask = {"problem": "How many are left?", "n": 4, "seed": 9}
    with httpx.Client(base_url=live.base_url, timeout=60) as client:
        streamed = api_rig.frames(client.post("/v1/solve", json={**ask, "stream": True}).text)
        run = streamed[0]["data"]["id"]
        kept = [f for f in streamed[1:] if f["event"] != "Progress"]
        assert [int(f["id"]) for f in kept] == list(range(1, len(kept) + 1))
        assert kept[-1]["event"] == "RunFinished"
        stored = client.get(f"/v1/runs/{run}").json()
        assert stored.pop("stored") is True
        assert stored == kept[-1]["data"]["result"]
        assert api_rig.frames(client.get(f"/v1/runs/{run}/events").text) == kept
        rest = client.get(f"/v1/runs/{run}/events", headers={"last-event-id": "5"})
        assert api_rig.frames(rest.text) == kept[5:]
        again = client.post("/v1/solve", json=ask).json()
        for name in ("tree", "text", "completions", "votes"):
            assert again[name] == stored[name]


def test_nothing_is_left_of_clients_that_leave(live: api_rig.Live) -> None:
    """80 requests broken off at any moment: no run open, no KV block held."""
    draw = random.Random(0)
    ask = {"problem": "1 + 1?", "n": 8}
    chat = {"model": "bundled", "messages": [{"role": "user", "content": "hi"}]}
    kinds: list[tuple[str, object]] = [
        ("/v1/solve", ask),
        ("/v1/solve", {**ask, "stream": True}),
        ("/v1/chat/completions", chat),
        ("/v1/chat/completions", {**chat, "stream": True, "n": 3}),
        ("/v1/chat/completions", {**chat, "stream": True, "search": {"n": 8}}),
    ]
    for _ in range(80):
        connection = live.connect()
        connection.sendall(api_rig.post_bytes(*draw.choice(kinds)))
        time.sleep(draw.random() * 0.04)
        connection.close()

    def status() -> dict[str, Any]:
        found: dict[str, Any] = httpx.get(f"{live.base_url}/v1/status").json()
        return found

    api_rig.wait_until(lambda: status()["runs"] == {"queued": 0, "running": 0})
    for engine in status()["engines"].values():
        view = engine["view"]
        assert (view["running"], view["waiting"], view["blocks_used"]) == (0, 0, 0)
    runs = httpx.get(f"{live.base_url}/v1/runs?limit=1000").json()["data"]
    assert {r["status"] for r in runs} <= {"finished", "cancelled"}
    assert sum(r["status"] == "cancelled" for r in runs) > 30
