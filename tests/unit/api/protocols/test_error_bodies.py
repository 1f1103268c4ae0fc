"""One error body in each protocol, whoever refuses; streams that break off end with the reason."""

import json
from typing import Any

import pytest
from httpx import AsyncClient

from flashedge import errors
from flashedge.api.failures import dump_json
from flashedge.api.paths import CHAT, COMPLETIONS, MESSAGES, PROTOCOL_ROUTES, RESPONSES
from flashedge.api.protocols import error_bodies
from flashedge.api.protocols.error_bodies import StreamFailures, build_protocol_error
from flashedge.engine.http_requests import RequestTags, TaggedRequest
from flashedge.errors import DaemonStopping, EngineDead, FlashEdgeError
from tests.support.api_rig import ask, client_of, keep_in
from tests.support.fake_protocols import FakeProtocols
from tests.support.fake_service import FakeService

ASK = {"model": "bundled", "max_tokens": 5, "messages": [{"role": "user", "content": "hi"}]}
KEY = {"api_key": "geheim", "host": "0.0.0.0"}


def check(answer: Any, status: int, kind: str) -> str:
    assert answer.status_code == status, answer.text
    message = answer.json()["error"]["message"]
    assert answer.json() == {"type": "error", "error": {"type": kind, "message": message}}
    return str(message)


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


FULL = errors.QueueFull("256 are open", retry_after_s=3)
OVERLOADS = (EngineDead("it is gone"), FULL, DaemonStopping.for_request())


@pytest.mark.parametrize("failure", [*OVERLOADS, errors.StoreError("the disk is full")])
async def test_a_failure_has_the_form_of_its_protocol(failure: FlashEdgeError) -> None:
    status, kind = (503, "overloaded_error") if failure in OVERLOADS else (507, "api_error")
    service = FakeService(protocols=FakeProtocols(failure=failure))
    _, answer = await ask(MESSAGES, ASK, service)
    assert check(answer, status, kind) == failure.line
    assert ("retry-after" in answer.headers) == (status == 503)
    searching = {**ASK, "model": "bundled:beam-4", "stream": True}
    check((await ask(MESSAGES, searching, FakeService(failure=failure)))[1], status, kind)


async def test_an_error_without_a_body_stays_without() -> None:
    """As the answer to HEAD."""
    sent: list[Any] = []
    send = error_bodies.rewrite_error(keep_in(sent), lambda told, status: {})
    await send({"type": "http.response.start", "status": 404, "headers": []})
    await send({"type": "http.response.body", "body": b"", "more_body": True})
    assert sent == [], "it waits for the whole body"
    await send({"type": "http.response.body", "body": b""})
    assert [m.get("body", b"") for m in sent] == [b"", b""]


# ---------------------------------------------------------------- vLLM's own errors

LONG = "This model's maximum context length is 1024 tokens. However, your prompt contains "
TOO_LONG: list[tuple[str, str]] = [
    *(
        (f"{LONG}{count} input tokens, which exceeds this limit.", count)
        for count in ("3000", "at least 1025")
    ),
    (
        "This model's maximum context length is 1024 tokens, which are 9000 characters at most."
        " However, the conversation has 90000. Shorten it.",
        "at least 1025",
    ),
    ("1024 tokens do not fit the generator's context of 1024 tokens; shorten the problem", "1024"),
]
"""What refuses a conversation, and the count by which Anthropic's clients know it."""


@pytest.mark.parametrize(("message", "count"), TOO_LONG, ids=lambda v: v[:50])
def test_a_conversation_that_is_too_long_is_told_in_the_clients_words(
    message: str, count: str
) -> None:
    vllms = {"message": message, "type": "BadRequestError", "param": "input_tokens", "code": 400}
    ours = {"type": "invalid_request_error", "code": "context_length_exceeded"}
    for failure in (None, errors.ContextOverflow(message)):
        assert build_protocol_error(vllms, 400, failure)["error"] == {**vllms, **ours}
    words = f"prompt is too long: {count} tokens > 1024 maximum"
    told = {"type": "invalid_request_error", "message": words}
    said = error_bodies.build_messages_error({"message": message}, 400)
    assert said == {"type": "error", "error": told}


@pytest.mark.parametrize(
    ("status", "failure", "kind", "code"),
    [
        (400, None, "invalid_request_error", "invalid_request"),
        (404, None, "invalid_request_error", "not_found"),
        (422, None, "invalid_request_error", "invalid_request"),
        (500, None, "server_error", "internal_error"),
        (503, None, "server_error", "overloaded"),
        (503, EngineDead("it is gone"), "server_error", "engine_dead"),
        (400, EngineDead("of another choice"), "invalid_request_error", "invalid_request"),
    ],
)
def test_an_error_of_vllm_has_our_form(
    status: int, failure: FlashEdgeError | None, kind: str, code: str
) -> None:
    told = {"message": "no", "type": "BadRequestError", "param": None, "code": status}
    error = build_protocol_error(told, status, failure)["error"]
    assert error == {"message": "no", "type": kind, "param": None, "code": code}


@pytest.mark.parametrize("path", sorted(set(PROTOCOL_ROUTES)))
async def test_every_layer_writes_the_same_body(client: AsyncClient, path: str) -> None:
    guard = await client.post(path, json=ASK, headers={"host": "evil.example"})
    switch = await client.post(path, json={**ASK, "model": "gpt-5"})
    handler = await client.post(path, json={"model": "bundled"})
    assert [answer.status_code for answer in (guard, switch, handler)] == [403, 404, 400]
    for answer in (guard, switch, handler):
        assert int(answer.headers["content-length"]) == len(answer.content)
        body = answer.json()
        keys = (body.keys(), body["error"].keys())
        if path.startswith(MESSAGES):
            assert keys == ({"type", "error"}, {"type", "message"})
        else:
            assert keys == ({"error"}, {"message", "type", "param", "code"})
            assert isinstance(body["error"]["code"], str)


@pytest.mark.parametrize("path", [CHAT, RESPONSES, MESSAGES, COMPLETIONS])
async def test_a_long_session_reaches_the_handlers(path: str) -> None:
    """They count its tokens. Agents know what to do when those are too many, not bytes."""
    turns = [{"role": "user", "content": "x" * 3_000_000}]
    for model in ("bundled", "bundled:beam-4")[: 1 if path == COMPLETIONS else 2]:
        service, answer = await ask(path, {"model": model, "messages": turns})
        assert (answer.status_code, len(service.protocols.asked)) == (200, 1), answer.text[:200]


HEADERS = [(b"content-type", b"text/event-stream; charset=utf-8")]
STREAM = {"type": "http.response.start", "status": 200, "headers": HEADERS}
STOPPING = DaemonStopping("the daemon is stopping")


async def pass_on(
    path: str, failure: FlashEdgeError | None, *bodies: bytes, more: bool = True
) -> tuple[StreamFailures, list[Any]]:
    """What passes a stream with these bodies on, and what it sent. failure: of the request."""
    request = TaggedRequest(RequestTags(client="me", seed=1), None)
    request.failure = failure
    sent: list[Any] = []
    failures = StreamFailures(request, path, keep_in(sent))
    await failures.send(STREAM)
    for body in bodies:
        await failures.send({"type": "http.response.body", "body": body, "more_body": more})
    return failures, sent


def read_error(sent: list[Any]) -> Any:
    event, data = sent[-1]["body"].decode().strip().split("\n")
    assert event == "event: error"
    return json.loads(data.removeprefix("data: "))


async def test_a_stream_of_responses_that_breaks_off_gets_its_reason() -> None:
    said = (b"event: response.created\ndata: {}\n\n", b"event: x\ndata: {}\n\n")
    failures, sent = await pass_on(RESPONSES, STOPPING, *said)
    assert await failures.end()
    error = {"code": "stopping", "message": "the daemon is stopping", "param": None}
    assert read_error(sent) == {"type": "error", **error, "sequence_number": 2}
    assert sent[-1]["more_body"] is False


async def test_a_stream_of_messages_says_the_real_error() -> None:
    body = b'event: error\ndata: {"error":"2 validation errors"}\n\n'
    failed = errors.GenerationFailed("it failed")
    for failure, kind in ((STOPPING, "overloaded_error"), (failed, "api_error")):
        _, sent = await pass_on(MESSAGES, failure, body)
        told = {"type": kind, "message": str(failure)}
        assert read_error(sent) == {"type": "error", "error": told}
    _, unexplained = await pass_on(MESSAGES, None, body)
    assert unexplained[-1]["body"] == body


@pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
@pytest.mark.parametrize(
    ("failure", "code"), [(STOPPING, "stopping"), (None, "overloaded")], ids=["ours", "vllms"]
)
async def test_an_error_within_a_stream_has_the_form_of_others(
    path: str, failure: Any, code: str
) -> None:
    told = {"message": "no", "type": "ServiceUnavailableError", "param": None, "code": 503}
    _, sent = await pass_on(path, failure, b"data: " + dump_json({"error": told}) + b"\n\n")
    data = json.loads(sent[-1]["body"].decode().strip().removeprefix("data: "))
    assert data == {"error": {**told, "type": "server_error", "code": code}}


async def test_other_streams_are_not_ended() -> None:
    for path, failure, more in (
        *((path, STOPPING, True) for path in (CHAT, MESSAGES)),  # they end their own streams
        (RESPONSES, STOPPING, False),  # it is whole
        (RESPONSES, None, True),  # a bug of ours is raised, for the log
    ):
        failures, _ = await pass_on(path, failure, b"event: x\ndata: {}\n\n", more=more)
        assert not await failures.end()
