"""Where the object of a search's result stands in an answer."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

import pytest

from flashedge.api.protocols.paths import CHAT, MESSAGES, RESPONSES
from flashedge.api.protocols.search import add_result
from tests.support.made_run import build_result

TRAP = 'data: {x} "finish_reason":"stop" data: {'


async def send_all(path: str, kind: bytes, *bodies: bytes, status: int = 200) -> list[Any]:
    sent: list[Any] = []

    async def keep(message: Any) -> None:
        sent.append(message)

    search: Any = SimpleNamespace(run_id="run-1", result=build_result())
    send = add_result(search, path, keep)
    headers = [(b"content-type", kind), (b"content-length", b"9")]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    for body in bodies:
        await send({"type": "http.response.body", "body": body, "more_body": True})
    return sent


def frame(data: Any, event: str = "") -> bytes:
    return f"{event}data: {json.dumps(data, separators=(',', ':'))}\n\n".encode()


@pytest.mark.parametrize(
    ("path", "last"),
    [
        (CHAT, {"choices": [{"delta": {"content": TRAP}, "finish_reason": "stop"}]}),
        (
            RESPONSES,
            {"response": {"output": TRAP, "instructions": TRAP}, "type": "response.completed"},
        ),
        (MESSAGES, {"type": "message_delta", "delta": {"text": TRAP}}),
    ],
)
async def test_it_stands_in_the_event_itself_whatever_texts_say(path: str, last: Any) -> None:
    event = "" if path == CHAT else "event: x\n"
    first = frame({"choices": [{"delta": {"content": TRAP}, "finish_reason": None}]}, event)
    head, before, body, after = await send_all(
        path, b"text/event-stream", first, frame(last, event), frame(last, event)
    )
    assert before["body"] == first
    found = json.loads(body["body"].decode().split("data: ", 1)[1])
    assert found.pop("flashedge")["run_id"] == "run-1"
    assert found == last
    assert after["body"] == frame(last, event), "once"
    assert (b"x-flashedge-run", b"run-1") in head["headers"]
    assert not any(name == b"content-length" for name, _ in head["headers"])


async def test_a_whole_answer_has_it_and_an_error_does_not() -> None:
    body = json.dumps({"text": TRAP}).encode()
    _, sent = await send_all(CHAT, b"application/json", body)
    assert json.loads(sent["body"])["flashedge"]["answer"] == "2"
    head, sent = await send_all(CHAT, b"application/json", body, status=400)
    assert sent["body"] == body
    assert (b"content-length", b"9") in head["headers"]
