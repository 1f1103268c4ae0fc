"""Streams that break off end with the reason, in their protocol's form."""

from __future__ import annotations

import json
from typing import Any

import pytest

from flashedge.api.failures import dump_json
from flashedge.api.protocols.error_bodies import StreamFailures
from flashedge.api.protocols.paths import CHAT, COMPLETIONS, MESSAGES, RESPONSES
from flashedge.engine.http_requests import RequestTags, TaggedRequest
from flashedge.errors import DaemonStopping, FlashEdgeError, GenerationFailed

STREAM = {
    "type": "http.response.start",
    "status": 200,
    "headers": [(b"content-type", b"text/event-stream; charset=utf-8")],
}
STOPPING = DaemonStopping("the daemon is stopping")


class Answer:
    def __init__(self, path: str, failure: FlashEdgeError | None = None) -> None:
        request = TaggedRequest(RequestTags(client="me", seed=1), None)
        request.failure = failure
        self.sent: list[Any] = []
        self.failures = StreamFailures(request, path, self._keep)

    async def _keep(self, message: Any) -> None:
        self.sent.append(message)

    async def send(self, *bodies: bytes, more: bool = True) -> None:
        await self.failures.send(STREAM)
        for body in bodies:
            part = {"type": "http.response.body", "body": body, "more_body": more}
            await self.failures.send(part)

    @property
    def last(self) -> Any:
        event, data = self.sent[-1]["body"].decode().strip().split("\n")
        assert event == "event: error"
        return json.loads(data.removeprefix("data: "))


async def test_a_stream_of_responses_that_breaks_off_gets_its_reason() -> None:
    answer = Answer(RESPONSES, STOPPING)
    await answer.send(b"event: response.created\ndata: {}\n\n", b"event: x\ndata: {}\n\n")
    assert await answer.failures.end()
    assert answer.last == {
        "type": "error",
        "code": "stopping",
        "message": "the daemon is stopping",
        "param": None,
        "sequence_number": 2,
    }
    assert answer.sent[-1]["more_body"] is False


@pytest.mark.parametrize(
    ("failure", "kind"),
    [(STOPPING, "overloaded_error"), (GenerationFailed("it failed"), "api_error")],
)
async def test_a_stream_of_messages_says_the_real_error(failure: Any, kind: str) -> None:
    answer = Answer(MESSAGES, failure)
    await answer.send(b'event: error\ndata: {"error":"2 validation errors"}\n\n')
    assert answer.last == {"type": "error", "error": {"type": kind, "message": str(failure)}}


async def test_an_error_event_that_no_failure_explains_stays() -> None:
    body = b'event: error\ndata: {"error":"bad"}\n\n'
    answer = Answer(MESSAGES)
    await answer.send(body)
    assert answer.sent[-1]["body"] == body


@pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
@pytest.mark.parametrize(
    ("failure", "code"), [(STOPPING, "stopping"), (None, "overloaded")], ids=["ours", "vllms"]
)
async def test_an_error_within_a_stream_has_the_form_of_others(
    path: str, failure: Any, code: str
) -> None:
    told = {"message": "no", "type": "ServiceUnavailableError", "param": None, "code": 503}
    answer = Answer(path, failure)
    await answer.send(b"data: " + dump_json({"error": told}) + b"\n\n")
    data = json.loads(answer.sent[-1]["body"].decode().strip().removeprefix("data: "))
    told = {"message": "no", "type": "server_error", "param": None, "code": code}
    assert data == {"error": told}


@pytest.mark.parametrize("path", [CHAT, MESSAGES])
async def test_other_protocols_end_their_own_streams(path: str) -> None:
    answer = Answer(path, STOPPING)
    await answer.send(b"data: {}\n\n")
    assert not await answer.failures.end()


async def test_an_answer_that_is_whole_is_not_ended_again() -> None:
    answer = Answer(RESPONSES, STOPPING)
    await answer.send(b"event: x\ndata: {}\n\n", more=False)
    assert not await answer.failures.end()
    unknown = Answer(RESPONSES)
    await unknown.send(b"event: x\ndata: {}\n\n")
    assert not await unknown.failures.end(), "a bug of ours is raised, for the log"
