"""Whoever refuses a request of Anthropic's protocol, the error has that protocol's form."""

from __future__ import annotations

from typing import Any

import pytest

from flashedge.api.protocols.messages_errors import rewrite_error
from flashedge.api.protocols.paths import MESSAGES
from flashedge.errors import DaemonStopping, EngineDead, StoreError
from tests.support.api_rig import client_of
from tests.support.fake_protocols import FakeProtocols
from tests.support.fake_service import FakeService

ASK = {"model": "bundled", "max_tokens": 5, "messages": [{"role": "user", "content": "hi"}]}
KEY = {"api_key": "geheim", "host": "0.0.0.0"}


def check(answer: Any, status: int, kind: str) -> str:
    assert answer.status_code == status, answer.text
    body = answer.json()
    assert body == {"type": "error", "error": {"type": kind, "message": body["error"]["message"]}}
    return str(body["error"]["message"])


@pytest.mark.parametrize("path", [MESSAGES, f"{MESSAGES}/count_tokens"])
async def test_refusals_of_the_guard_and_the_switch(path: str) -> None:
    async with client_of(FakeService(), **KEY) as client:
        check(await client.post(path, json=ASK), 401, "authentication_error")
    async with client_of(FakeService(), max_request_bytes=1024) as client:
        large = {**ASK, "system": "x" * 2000}
        check(await client.post(path, json=large), 413, "request_too_large")
        elsewhere = await client.post(path, json=ASK, headers={"host": "evil.example"})
        check(elsewhere, 403, "permission_error")
        unknown = await client.post(path, json={**ASK, "model": "gpt-5"})
        assert "gpt-5" in check(unknown, 404, "not_found_error")
        broken = await client.post(path, content=b"{", headers={"content-type": "application/json"})
        assert "malformed JSON" in check(broken, 400, "invalid_request_error")
        text = await client.post(path, content=b"{}", headers={"content-type": "text/plain"})
        check(text, 415, "invalid_request_error")
        assert "does not accept" in check(await client.get(path), 405, "invalid_request_error")


async def test_errors_that_the_handlers_write_in_openais_form() -> None:
    async with client_of(FakeService()) as client:
        answer = await client.post(MESSAGES, json={"model": "bundled"})
        assert check(answer, 400, "invalid_request_error") == "nothing to answer"
        assert int(answer.headers["content-length"]) == len(answer.content)


@pytest.mark.parametrize(
    ("failure", "status", "kind"),
    [
        (EngineDead("it is gone"), 503, "overloaded_error"),
        (DaemonStopping.for_request(), 503, "overloaded_error"),
        (StoreError("the disk is full"), 507, "api_error"),
    ],
)
async def test_errors_of_the_runtime(failure: Exception, status: int, kind: str) -> None:
    service = FakeService(protocols=FakeProtocols(failure=failure))
    async with client_of(service) as client:
        assert str(failure) in check(await client.post(MESSAGES, json=ASK), status, kind)


async def test_answers_streams_and_other_routes_stay() -> None:
    async with client_of(FakeService()) as client:
        whole = await client.post(MESSAGES, json=ASK)
        assert whole.status_code == 200
        assert "choices" in whole.json()  # what the stand-in for vLLM's handlers says
        streamed = await client.post(MESSAGES, json={**ASK, "stream": True})
        assert streamed.text.endswith("data: [DONE]\n\n")
        other = await client.post("/v1/chat/completions", json={"model": "gpt-5"})
        assert other.json()["error"]["code"] == "not_found"


async def test_an_error_without_a_body_stays_without() -> None:
    """As the answer to HEAD."""
    sent: list[Any] = []

    async def keep(message: Any) -> None:
        sent.append(message)

    send = rewrite_error(keep)
    await send({"type": "http.response.start", "status": 404, "headers": []})
    await send({"type": "http.response.body", "body": b"", "more_body": True})
    assert sent == [], "it waits for the whole body"
    await send({"type": "http.response.body", "body": b""})
    assert [m.get("body", b"") for m in sent] == [b"", b""]
