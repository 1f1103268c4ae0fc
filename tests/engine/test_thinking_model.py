"""A model that thinks, on real engines: stop strings, budgets and streams."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from flashedge.api.protocols.paths import CHAT, MESSAGES, RESPONSES
from scripts.bench.daemon import start_daemon
from tests.support.tool_caller import ENTRY, NO_TOOLS, make_tool_caller

THOUGHT = "So Q: 3 and 4. Wait, Q: 3 and 4 are 7, so it is 7."
SAY = [{"role": "user", "content": "3 + 4?"}]
TOOL = {
    "type": "function",
    "function": {
        "name": "add",
        "parameters": {
            "type": "object",
            "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}},
            "required": ["a", "b"],
        },
    },
}
MODELS = pytest.mark.parametrize("model", ["tool-caller", "tool-caller:self_consistency-2"])
Said = tuple[str, str, list[Any]]
"""Thinking, text, and arguments of calls."""


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[httpx.Client]:
    folder = tmp_path_factory.mktemp("config")
    entry = ENTRY.format(folder=make_tool_caller(folder / "model", f"<think>{THOUGHT}</think>"))
    parsers = 'tool_parser = "hermes"\nreasoning_parser = "qwen3"\nthinking = true'
    entry = entry.replace('tool_parser = "hermes"', parsers)
    (folder / "models.toml").write_text(entry, encoding="utf-8")
    with (
        start_daemon(config_dir=folder, pair="tool-caller") as daemon,
        httpx.Client(base_url=daemon.url, timeout=120) as opened,
    ):
        yield opened


def ask(client: httpx.Client, model: str, *, stream: bool, **fields: Any) -> Said:
    body = {"model": model, "messages": SAY, "max_tokens": 150, "temperature": 0, **fields}
    answer = client.post(CHAT, json={**body, "stream": stream})
    assert answer.status_code == 200, answer.text
    if not stream:
        message = answer.json()["choices"][0]["message"]
        calls = [call["function"]["arguments"] for call in message.get("tool_calls") or ()]
        return message["reasoning"] or "", message["content"] or "", list(map(json.loads, calls))
    lines = [line[6:] for line in answer.text.splitlines() if line.startswith("data: {")]
    deltas = [choice["delta"] for line in lines for choice in json.loads(line)["choices"]]
    thought = "".join(delta.get("reasoning") or "" for delta in deltas)
    calls = [c["function"]["arguments"] for delta in deltas for c in delta.get("tool_calls") or ()]
    text = "".join(delta.get("content") or "" for delta in deltas)
    return thought.rpartition("[/search]\n")[2], text, list(map(json.loads, calls))


CASES: list[tuple[dict[str, Any], Said]] = [
    ({}, (THOUGHT, NO_TOOLS, [])),
    ({"stop": ["Q:"]}, (THOUGHT, NO_TOOLS, [])),
    ({"stop": ["Q:", "no"]}, (THOUGHT, "I have ", [])),
    ({"tools": [TOOL], "stop": "Wait"}, (THOUGHT, "", [{"a": 3, "b": 4}])),
    ({"max_tokens": 6}, (THOUGHT[:9], "", [])),
]


@MODELS
@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(("fields", "said"), CASES, ids=lambda v: str(v)[:40])
def test_the_thinking_is_whole_and_apart(
    client: httpx.Client, model: str, fields: dict[str, Any], said: Said, stream: bool
) -> None:
    found = ask(client, model, stream=stream, **fields)
    if fields.get("max_tokens"):
        assert THOUGHT.startswith(found[0])
        assert found == (found[0], "", [])
    else:
        assert found == said


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    "sampling", [{}, {"temperature": 0.1}, {"seed": 5}, {"seed": 5, "temperature": 0.1}], ids=str
)
def test_a_budget_of_thinking_is_obeyed(
    client: httpx.Client, sampling: dict[str, Any], stream: bool
) -> None:
    """The model goes on as if it had not thought to the end, so only the beginning is known."""
    thought, text, _ = ask(
        client, "tool-caller", stream=stream, thinking_token_budget=4, max_tokens=60, **sampling
    )
    assert THOUGHT.startswith(thought)
    assert 0 < len(thought) < len(THOUGHT) / 2
    assert text


@pytest.mark.parametrize("path", [CHAT, RESPONSES, MESSAGES])
def test_a_search_refuses_a_budget_that_it_can_not_keep(client: httpx.Client, path: str) -> None:
    body: dict[str, Any] = {"model": "tool-caller:self_consistency-2", "max_tokens": 100}
    body["messages"] = SAY
    if path == RESPONSES:
        body = {"model": body["model"], "max_output_tokens": 100, "input": "3 + 4?"}
    pattern = {"max_pattern_size": 8, "min_pattern_size": 1, "min_count": 3}
    refused: dict[str, dict[str, Any]] = {
        "thinking_token_budget": {"thinking_token_budget": 16},
        "thinking": {"thinking": {"type": "enabled", "budget_tokens": 50}},
        "repetition_detection": {"repetition_detection": pattern},
    }
    for name, fields in refused.items():
        answer = client.post(path, json={**body, **fields})
        assert answer.status_code == 400, name
        error = answer.json()["error"]
        assert "search" in error["message"]
        assert path == MESSAGES or error["param"] == name
    assert client.post(path, json={**body, "thinking_token_budget": 99}).status_code == 200


@MODELS
@pytest.mark.parametrize("stream", [False, True])
def test_what_goes_on_with_an_answer_is_text(
    client: httpx.Client, model: str, stream: bool
) -> None:
    turns = [*SAY, {"role": "assistant", "content": f"<think>{THOUGHT}</think>I have"}]
    body = {"model": model, "messages": turns, "max_tokens": 20, "temperature": 0, "stream": stream}
    answer = client.post(MESSAGES, json=body)
    if not stream:
        texts = [b["text"] for b in answer.json()["content"] if b["type"] == "text"]
        assert texts == [" no tools."]
        return
    lines = [line[6:] for line in answer.text.splitlines() if line.startswith("data: {")]
    deltas = [event["delta"] for event in map(json.loads, lines) if "delta" in event]
    assert "".join(delta.get("text", "") for delta in deltas) == " no tools."


@MODELS
def test_messages_show_the_thinking_in_blocks_of_its_own(client: httpx.Client, model: str) -> None:
    body = {"model": model, "messages": SAY, "max_tokens": 150, "temperature": 0}
    body["stop_sequences"] = ["Q:"]
    content = client.post(MESSAGES, json=body).json()["content"]
    assert [block["type"] for block in content] == ["thinking", "text"]
    assert (content[0]["thinking"], content[1]["text"]) == (THOUGHT, NO_TOOLS)
    answer = client.post(MESSAGES, json={**body, "stream": True})
    lines = [line[6:] for line in answer.text.splitlines() if line.startswith("data: {")]
    kinds = {"thinking_delta": "thinking", "signature_delta": "thinking", "text_delta": "text"}
    opened: list[str] = []
    for event in map(json.loads, lines):
        if event["type"] == "content_block_start":
            opened.append(event["content_block"]["type"])
        elif event["type"] == "content_block_delta":
            assert event["index"] == len(opened) - 1
            assert kinds[event["delta"]["type"]] == opened[-1]
    assert opened == ["thinking", "text"]
