"""The field `keep_alive`: how long a pair stays loaded after a request."""

from __future__ import annotations

from typing import Any

import pytest

from flashedge.api.bodies import parse_keep_alive
from flashedge.errors import RequestError
from tests.support.api_rig import client_of
from tests.support.fake_service import FakeService


@pytest.mark.parametrize(
    ("value", "seconds"),
    [
        (None, None),
        (0, 0.0),
        (-1, -1.0),
        (2.5, 2.5),
        ("90", 90.0),
        ("-1", -1.0),
        ("10m", 600.0),
        ("1h30m", 5400.0),
        ("250ms", 0.25),
        (" 2d ", 172_800.0),
        ("-5m", -300.0),
    ],
)
def test_it_is_seconds_or_a_text_with_units(value: Any, seconds: float | None) -> None:
    assert parse_keep_alive(value) == seconds


@pytest.mark.parametrize("value", ["", "soon", "10 minutes", "m", "5mm", True, [], float("inf")])
def test_anything_else_is_refused(value: Any) -> None:
    with pytest.raises(RequestError, match="keep_alive is") as error:
        parse_keep_alive(value)
    assert error.value.param == "keep_alive"


async def test_runs_and_protocols_take_it() -> None:
    service = FakeService()
    message = {"role": "user", "content": "1 + 1?"}
    async with client_of(service) as client:
        for path, body in (
            ("/v1/solve", {"problem": "1 + 1?", "n": 2, "keep_alive": "10m"}),
            ("/v1/runs", {"problem": "1 + 1?", "n": 2}),
            ("/v1/chat/completions", {"model": "bundled", "messages": [message], "keep_alive": -1}),
            ("/v1/chat/completions", {"model": "bundled:beam-2", "messages": [message]}),
        ):
            assert (await client.post(path, json=body)).is_success, path
        wrong = {"model": "bundled", "messages": [message], "keep_alive": "soon"}
        refused = await client.post("/v1/chat/completions", json=wrong)
        assert (refused.status_code, refused.json()["error"]["param"]) == (400, "keep_alive")
        assert (await client.post("/v1/unload")).status_code == 202
        assert (await client.post("/v1/load")).status_code == 202
    assert service.kept_alive == [600.0, None, -1.0, None, 0]
    assert service.life[-1] == "loaded"
