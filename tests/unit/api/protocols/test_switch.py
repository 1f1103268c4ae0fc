"""What the switch does with a request before vLLM's handlers see it, and with their answers."""

from __future__ import annotations

from typing import Any

import pytest
from httpx import AsyncClient

from flashedge.api.paths import PROTOCOL_ROUTES
from flashedge.api.protocols.switch import read_tags
from flashedge.errors import QueueFull
from flashedge.types import MAX_SEED
from tests.support.api_rig import ask, frames
from tests.support.fake_protocols import FakeProtocols
from tests.support.fake_service import FakeService

CHAT: dict[str, Any] = {"model": "bundled", "messages": [{"role": "user", "content": "hi"}]}
URL = "/v1/chat/completions"


@pytest.mark.parametrize("path", sorted(PROTOCOL_ROUTES))
async def test_plain_names_reach_the_protocols_unchanged(path: str) -> None:
    body = {**CHAT, "tools": [{"x": 1}], "unknown": {"kept": True}}
    service, response = await ask(path, body)
    assert response.status_code == 200, response.text
    assert [(p, b) for p, b, _ in service.protocols.asked] == [(path, body)]
    assert not service.handles


@pytest.mark.parametrize("path", [URL, "/v1/responses", "/v1/messages"])
async def test_a_search_starts_a_run_in_each_protocol_of_conversations(path: str) -> None:
    service = FakeService()
    for change in ({"model": "bundled:beam-4"}, {"search": {"n": 2}}):
        _, answer = await ask(path, {**CHAT, **change}, service)
        assert answer.status_code == 200
    assert [h.request.n for h in service.handles.values()] == [4, 2]


async def test_another_method_or_path_stays_with_us(client: AsyncClient) -> None:
    service, response = await ask("/v1/completions", {**CHAT, "model": "bundled:beam-4"})
    assert (response.status_code, URL in response.text) == (400, True), "with the way to go"
    assert not service.handles
    assert (await client.get(URL)).status_code == 405
    assert (await client.post("/v1/chat/completions/batch", json=CHAT)).status_code == 404
    assert set(PROTOCOL_ROUTES) <= set((await client.get("/openapi.json")).json()["paths"])


@pytest.mark.parametrize(
    ("headers", "body", "client", "program"),
    [
        ({}, {}, "127.0.0.1", None),
        ({"X-FlashEdge-Client": "ide"}, {"user": "u"}, "ide", None),
        ({"X-FlashEdge-Program": "p"}, {"prompt_cache_key": "k"}, "127.0.0.1", "p of 127.0.0.1"),
        ({}, {"user": "u", "prompt_cache_key": "k"}, "u", "k of u"),
        ({}, {"safety_identifier": "s"}, "s", None),
        ({}, {"metadata": {"user_id": "m"}}, "m", None),
        ({}, {"user": 5, "metadata": "x", "prompt_cache_key": ["y"]}, "127.0.0.1", None),
        ({}, {"user": "x" * 999}, "x" * 200, None),
    ],
)
async def test_tags_say_who_asks_and_for_what(
    headers: dict[str, str], body: dict[str, Any], client: str, program: str | None
) -> None:
    service, _ = await ask(URL, {**CHAT, **body}, headers=headers)
    ((_, _, tags),) = service.protocols.asked
    assert (tags.client, tags.program) == (client, program)


def test_tags_hold_seed_priority_and_determinism() -> None:
    scope = {"type": "http", "path": URL, "headers": [], "client": None}
    tags = read_tags(scope, {"seed": 5, "priority": -2, "deterministic": True})
    assert (tags.seed, tags.priority, tags.deterministic) == (5, -2, True)
    assert tags.is_seeded
    assert not read_tags(scope, {}).is_seeded
    assert 0 <= read_tags(scope, {"seed": -1}).seed <= MAX_SEED
    assert 0 <= read_tags(scope, {"seed": 1 << 80}).seed <= MAX_SEED
    strange = read_tags(scope, {"seed": "5", "priority": True, "deterministic": "yes"})
    assert (strange.priority, strange.deterministic) == (0, False)
    assert len({read_tags(scope, {}).seed for _ in range(8)}) == 8


async def test_thinking_has_both_of_its_names() -> None:
    text = 'it said "reasoning":"no" \\ and left'
    service = FakeService(protocols=FakeProtocols(reasoning=text, words=(text,)))
    message = (await ask(URL, CHAT, service))[1].json()["choices"][0]["message"]
    assert message["reasoning"] == message["reasoning_content"] == message["content"] == text
    _, streamed = await ask(URL, {**CHAT, "stream": True}, service)
    chunks = [f["data"] for f in frames(streamed.text)][:-1]
    said = "".join(c["choices"][0]["delta"].get("content", "") for c in chunks)
    assert said == text


@pytest.mark.parametrize("path", [URL, "/v1/responses", "/v1/messages"])
async def test_a_full_queue_is_told_before_a_stream_begins(path: str) -> None:
    full = FakeService(failure=QueueFull("16 runs wait", retry_after_s=3))
    _, answer = await ask(path, {**CHAT, "model": "bundled:beam-4", "stream": True}, full)
    assert (answer.status_code, answer.headers["retry-after"]) == (503, "3")
    assert answer.headers["content-type"] == "application/json"
    assert "16 runs wait" in answer.json()["error"]["message"]


async def test_tools_with_schemas_and_tools_of_a_wrong_shape_are_the_handlers() -> None:
    service = FakeService()
    tools = [{"type": "custom", "name": "a", "input_schema": {}}, {"name": "b"}, "c", None]
    for given in (tools, "tools", None):
        await ask("/v1/messages", {**CHAT, "tools": given}, service)
    neutral = {"background": False, "previous_response_id": None}
    await ask("/v1/responses", {**CHAT, **neutral}, service)
    assert len(service.protocols.asked) == 4


SAID = {"type": "text", "text": "The"}
PREFILLS: list[tuple[Any, bool]] = [
    ("The answer is", True),
    ([SAID], True),
    ([{"type": "thinking", "thinking": "so"}, SAID], True),
    ("", False),
    ([], False),
    (None, False),
    ([{"type": "tool_use", "id": "a", "name": "f", "input": {}}], False),
    ([{"type": "tool_use", "id": "a", "name": "f", "input": {}}, SAID], False),
    ([SAID, {"type": "thinking", "thinking": "so"}], False),
]


@pytest.mark.parametrize("model", ["bundled", "bundled:beam-4"])
@pytest.mark.parametrize(("content", "continues"), PREFILLS, ids=lambda v: str(v)[:40])
async def test_an_answer_goes_on_with_the_assistants_last_text(
    content: Any, continues: bool, model: str
) -> None:
    """In Anthropic's protocol only. In the others a request says so by a field."""
    turns = [*CHAT["messages"], {"role": "assistant", "content": content}]
    for path, expected in (("/v1/messages", continues), (URL, False)):
        service, _ = await ask(path, {"model": model, "messages": turns})
        ((_, _, tags),) = service.protocols.asked
        assert tags.continues is expected


def test_only_the_last_message_begins_an_answer() -> None:
    scope = {"type": "http", "path": "/v1/messages", "headers": [], "client": None}
    said = {"role": "assistant", "content": "The"}
    for turns in ([], [said, *CHAT["messages"]], [said, {"role": "system", "content": "x"}], "x"):
        assert not read_tags(scope, {"messages": turns}).continues
    assert read_tags(scope, {"messages": [said]}).continues
