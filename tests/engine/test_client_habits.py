"""What agents and editors really send, to a daemon with real engines, plain and by a search."""

import json
from typing import Any

import httpx
import pytest

from flashedge.api.paths import CHAT, COMPLETIONS, MESSAGES, RESPONSES
from tests.support.streams import list_blocks, read, read_events

SAY = [{"role": "user", "content": "What is 3 + 4?"}]
MODELS = pytest.mark.parametrize("model", ["bundled", "bundled:self_consistency-2"])
LIMIT = {CHAT: "max_tokens", RESPONSES: "max_output_tokens", MESSAGES: "max_tokens"}
SCHEMA = {
    "type": "object",
    "properties": {"a": {"type": "integer", "minimum": 0, "maximum": 9}},
    "required": ["a"],
    "additionalProperties": False,
}


def build_body(path: str, model: str, tokens: int, **fields: Any) -> dict[str, Any]:
    said = {"input": "What is 3 + 4?"} if path == RESPONSES else {"messages": SAY}
    return {"model": model, LIMIT[path]: tokens, **said, **fields}


def build_tool(path: str, *schema: Any) -> dict[str, Any]:
    name = "input_schema" if path == MESSAGES else "parameters"
    tool = {"name": "add", **({name: schema[0]} if schema else {})}
    if path == CHAT:
        return {"type": "function", "function": tool}
    return tool if path == MESSAGES else {"type": "function", **tool}


FORCED = [
    "before <tool_call>not json",
    'so <tool_call>{"name": }</tool_call>',
    "cut <tool_call>",
    "ends with <tool_c",
]


@MODELS
@pytest.mark.parametrize("path", [CHAT, RESPONSES])
@pytest.mark.parametrize("text", FORCED)
def test_a_stream_and_its_twin_have_the_same_text(
    client: httpx.Client, path: str, model: str, text: str
) -> None:
    """The grammar leaves the model no other text."""
    forced = {"structured_outputs": {"choice": [text]}, "tools": [build_tool(path, SCHEMA)]}
    for stream in (True, False, True):
        body = build_body(path, model, 80, seed=3, stream=stream, **forced)
        assert read(path, client.post(path, json=body)) == (text, [])


@MODELS
@pytest.mark.parametrize("path", [CHAT, RESPONSES, MESSAGES])
@pytest.mark.parametrize("schema", [(), (None,), ({},)], ids=["left out", "null", "empty"])
def test_a_tool_without_parameters_is_called_with_an_object(
    client: httpx.Client, path: str, model: str, schema: tuple[Any, ...]
) -> None:
    named: Any = {"type": "function", "name": "add"}
    forced = {"type": "any"} if path == MESSAGES else "required" if path == CHAT else named
    tools = {"tools": [build_tool(path, *schema)], "tool_choice": forced}
    for stream in (False, True):
        body = build_body(path, model, 60, stream=stream, **tools)
        _, calls = read(path, client.post(path, json=body))
        assert calls
        assert all(isinstance(json.loads(arguments), dict) for arguments in calls)


@MODELS
@pytest.mark.parametrize("path", [CHAT, RESPONSES, MESSAGES])
def test_what_means_nothing_is_passed_over(client: httpx.Client, path: str, model: str) -> None:
    habits: list[dict[str, Any]] = [
        {"tools": []},
        {"tool_choice": {"type": "auto"} if path == MESSAGES else "auto"},
        {"stream": False, "stream_options": {"include_usage": True}},
        {"thinking": {"type": "enabled", "budget_tokens": 1024}},
        {"temperature": None, "service_tier": None, "tools": None},
    ]
    for fields in habits:
        text, calls = read(path, client.post(path, json=build_body(path, model, 8, **fields)))
        assert text, fields
        assert not calls


@MODELS
@pytest.mark.parametrize("path", [CHAT, RESPONSES, MESSAGES, COMPLETIONS])
def test_a_long_session_is_refused_by_its_tokens(
    client: httpx.Client, path: str, model: str
) -> None:
    long = "1 + 1 = 2\n" * 120_000
    if path == COMPLETIONS:
        body: dict[str, Any] = {"model": "bundled", "max_tokens": 1, "prompt": long}
    elif path == RESPONSES:
        body = build_body(path, model, 1, input=long)
    else:
        turns = [*SAY, {"role": "assistant", "content": "7"}, SAY[0] | {"content": long}]
        body = build_body(path, model, 1, messages=turns)
    answer = client.post(path, json=body)
    assert answer.status_code == 400
    error = answer.json()["error"]
    if path == MESSAGES:
        assert error["type"] == "invalid_request_error"
        assert "prompt is too long: " in error["message"]
        assert error["message"].endswith(" tokens > 1024 maximum")
    else:
        assert "maximum context length is 1024 tokens" in error["message"]
        assert error["code"] == "context_length_exceeded"


def test_a_message_goes_on_with_what_the_assistant_said(client: httpx.Client) -> None:
    said = "The answer is"
    tokens = client.post("/tokenize", json={"model": "bundled", "prompt": said}).json()["count"]
    counts = []
    for turns in (SAY, [*SAY, {"role": "assistant", "content": said}]):
        body = {"model": "bundled", "messages": turns}
        counted = client.post(f"{MESSAGES}/count_tokens", json=body)
        counts.append(counted.json()["input_tokens"])
        for model in ("bundled", "bundled:self_consistency-2"):
            body = {"model": model, "messages": turns, "max_tokens": 5}
            usage = client.post(MESSAGES, json=body).json()["usage"]
            assert usage["input_tokens"] + usage["cache_read_input_tokens"] == counts[-1]
    assert counts[1] - counts[0] == tokens, "no turn is ended or begun"


def test_what_changes_in_each_request_does_not_cost_the_cache(client: httpx.Client) -> None:
    head = "x-anthropic-billing-header: cc_version=2.1.1; cch={};\n"
    rules = " ".join(f"Rule {n} of all rules." for n in range(30))
    for path in (MESSAGES, CHAT, RESPONSES):
        found = []
        for turn in ("a1", "b2"):
            left = f"\n<total_tokens>{ord(turn[0])} tokens left</total_tokens>"
            text = f"{head.format(turn)}{path}: {rules}{left}"
            body = build_body(path, "bundled", 4)
            if path == MESSAGES:
                body["system"] = [{"type": "text", "text": text}]
            elif path == CHAT:
                body["messages"] = [{"role": "system", "content": text}, *SAY]
            else:
                body["instructions"] = text
            usage = client.post(path, json=body).json()["usage"]
            details = usage.get("prompt_tokens_details") or usage.get("input_tokens_details") or {}
            found.append(usage.get("cache_read_input_tokens") or details.get("cached_tokens") or 0)
        assert found[0] < 64
        assert found[1] > 128, path


@MODELS
def test_every_choice_of_a_stream_ends_once(client: httpx.Client, model: str) -> None:
    tools = [build_tool(CHAT, SCHEMA)]
    named = {"type": "function", "function": {"name": "add"}}
    for choice in ("auto", "required", named):
        body = build_body(
            CHAT, model, 60, stream=True, n=2, temperature=1.0, tools=tools, tool_choice=choice
        )
        choices = [c for e in read_events(client.post(CHAT, json=body)) for c in e["choices"]]
        for index in range(2):
            *before, end = [c["finish_reason"] for c in choices if c["index"] == index]
            assert end is not None, choice
            assert not any(before)


@MODELS
def test_blocks_of_a_stream_are_filled_by_their_own_kind(client: httpx.Client, model: str) -> None:
    for fields in ({}, {"tools": [build_tool(MESSAGES, SCHEMA)], "tool_choice": {"type": "any"}}):
        body = build_body(MESSAGES, model, 60, stream=True, **fields)
        assert list(list_blocks(client.post(MESSAGES, json=body)))
