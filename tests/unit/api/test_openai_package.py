"""The `openai` package against the HTTP layer over a FakeService, through a real server."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from types import ModuleType

import openai
import pytest

from flashedge.errors import EngineDead, QueueFull
from flashedge.events import RunFailed, RunStarted
from tests.support.api_rig import Live, live_server
from tests.support.fake_service import FakeService
from tests.support.paths import ROOT

KEY = "sesame"


def _suite() -> ModuleType:
    path = ROOT / "tests" / "support" / "openai_suite.py"
    spec = importlib.util.spec_from_file_location("openai_suite", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


suite = _suite()


@pytest.fixture(scope="module")
def live() -> Iterator[Live]:
    with live_server(FakeService(), api_key=KEY) as server:
        yield server


def test_a_wrong_key_raises_an_authentication_error(live: Live) -> None:
    with pytest.raises(openai.AuthenticationError):
        suite.check_models(live.base_url, "bundled", "wrong")


def test_an_error_of_the_runtime_raises_its_openai_error(live: Live) -> None:
    client = openai.OpenAI(base_url=f"{live.base_url}/v1", api_key=KEY, max_retries=0)
    try:
        for failure in (QueueFull("16 wait", retry_after_s=1), EngineDead("it is gone")):
            live.service.protocols.failure = failure
            for stream in (False, True):
                with pytest.raises(openai.InternalServerError) as caught:
                    client.chat.completions.create(
                        model="bundled", messages=suite.QUESTION, stream=stream
                    )
                assert caught.value.status_code == 503
                assert caught.value.code == failure.code
                assert caught.value.response.headers["retry-after"]
    finally:
        live.service.protocols.failure = None
        client.close()


def test_a_search_that_fails_within_the_stream_raises(live: Live) -> None:
    live.service.autoplay = False
    client = openai.OpenAI(base_url=f"{live.base_url}/v1", api_key=KEY, max_retries=0)
    try:
        stream = client.chat.completions.create(
            model="bundled:beam-4", messages=suite.QUESTION, stream=True
        )
        next(iter(stream))
        live.call(
            lambda: live.service.last.emit(
                RunStarted(config={}, queue_s=0.0),
                RunFailed(error="the generator died twice", code="engine_dead"),
            )
        )
        with pytest.raises(openai.APIError, match="died twice"):
            list(stream)
    finally:
        live.service.autoplay = True
        client.close()
