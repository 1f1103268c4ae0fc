"""Random JSON bodies to every route that takes one: refused or answered, never a 5xx but 503.

The service, its store and the driver are real, the engines simulated. Behind the routes of the
protocols, a stand-in answers for vLLM's handlers; tests/engine/test_bodies_on_vllm.py sends the
same bodies to those.
"""

import json
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import httpx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from flashedge.api.app import create_app
from flashedge.api.bodies import replay_body
from flashedge.api.paths import PROTOCOL_ROUTES
from flashedge.config import load_config
from tests.support import random_bodies
from tests.support.api_rig import Live, serving, wait_until
from tests.support.fake_protocols import FakeProtocols
from tests.support.random_bodies import BODIES, CHAT, LATER, PROTOCOLS, change_bodies, values
from tests.support.sim_daemon import build_service

EXAMPLES = 25
"""Bodies for each route. A thousand more find nothing."""
PATIENCE_S = 2.0
"""A search that takes longer is left, which cancels it."""


class ForgivingProtocols(FakeProtocols):
    """It looks at no more of a body than it needs, as the handlers refuse what is wrong in it."""

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        body = json.loads((await receive())["body"])
        kept = {"messages": [{"role": "user", "content": "How many are left?"}], "max_tokens": 30}
        if scope["path"] == CHAT and body.get("stream") is True:
            kept["stream"] = True
        await super().__call__(scope, replay_body(json.dumps(kept).encode(), receive), send)


@pytest.fixture(scope="module")
def live(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    home = tmp_path_factory.mktemp("home")
    limits = {"queue_limit": 1000, "keep_alive_s": -1}
    config = load_config(limits, environ={"FLASHEDGE_HOME": str(home)})
    service = build_service(config, protocols=ForgivingProtocols)
    with serving(create_app(service, config), service) as server:
        wait_until(lambda: httpx.get(f"{server.base_url}/health").status_code == 200)
        yield server


def ask(live: Live, path: str, body: Any) -> None:
    text = json.dumps(body).encode()  # escapes half surrogates, as some clients do
    json_type = {"content-type": "application/json"}
    with (
        httpx.Client(base_url=live.base_url, timeout=PATIENCE_S) as client,
        suppress(httpx.ReadTimeout),
    ):
        answer = client.post(path, content=text, headers=json_type)
        random_bodies.check_answer(path, answer)
        if path == LATER and answer.status_code == 202:
            client.post(f"/v1/runs/{answer.json()['id']}/cancel")


def test_every_route_with_a_body_is_asked(live: Live) -> None:
    document = httpx.get(f"{live.base_url}/openapi.json").json()["paths"]
    posts = {path for path, routes in document.items() if "requestBody" in routes.get("post", {})}
    assert posts == set(BODIES)
    assert set(PROTOCOLS) == set(PROTOCOL_ROUTES)


@pytest.mark.parametrize("path", sorted(BODIES))
def test_bodies_that_are_nearly_valid(live: Live, path: str) -> None:
    names = ["bundled", "bundled", "nobody", None]
    if path in random_bodies.SEARCHES:
        names += ["bundled:beam-2", "bundled:self_consistency-2", "bundled:dvts-2:x"]

    @settings(max_examples=EXAMPLES, deadline=None, suppress_health_check=list(HealthCheck))
    @given(change_bodies(path), st.sampled_from(names))
    def send(body: dict[str, Any], name: Any) -> None:
        ask(live, path, {"model": name, **body} if path in PROTOCOLS else body)

    send()


@pytest.mark.parametrize("path", sorted(BODIES))
def test_bodies_of_any_kind(live: Live, path: str) -> None:
    @settings(max_examples=EXAMPLES // 4, deadline=None, suppress_health_check=list(HealthCheck))
    @given(values)
    def send(body: Any) -> None:
        ask(live, path, body)

    send()


def test_nothing_is_open_afterwards(live: Live) -> None:
    """Engines, queue and store are as they were, whatever was asked."""

    def is_idle() -> bool:
        status = httpx.get(f"{live.base_url}/v1/status").json()
        views = [engine["view"] for engine in status["engines"].values()]
        held = sum(v["running"] + v["waiting"] + v["blocks_used"] for v in views)
        return bool(status["runs"] == {"queued": 0, "running": 0} and not held)

    wait_until(is_idle, 20)
    answer = httpx.post(f"{live.base_url}/v1/solve", json={"problem": "1 + 1?", "n": 2}, timeout=30)
    assert answer.status_code == 200
