"""Request bodies that nobody would write: valid ones with some of their parts changed at random.

A body of random values alone is refused at its first field. One that is nearly valid reaches the
code behind the checks.
"""

import copy
import json
from collections.abc import Iterator, Mapping
from typing import Any

import httpx
from hypothesis import strategies as st

CHAT, RESPONSES, LATER = "/v1/chat/completions", "/v1/responses", "/v1/runs"
MESSAGES, COUNT = "/v1/messages", "/v1/messages/count_tokens"

_ARGUMENTS = {"a": {"type": "integer", "minimum": 0, "maximum": 99}}
_SCHEMA: dict[str, Any] = {"type": "object", "properties": _ARGUMENTS, "required": ["a"]}
_SCHEMA["additionalProperties"] = False
_FUNCTION: dict[str, Any] = {"name": "add", "description": "Adds.", "parameters": _SCHEMA}
_SAY = [{"role": "user", "content": "Tom has 3 apples and buys 4. How many now?"}]
_CALL = {"id": "c-1", "type": "function", "function": {"name": "add", "arguments": '{"a":3}'}}

_SCORE: tuple[dict[str, Any], ...] = (
    {"problem": "How many are left?", "solution": ["First three.\n\nSo three.", "None."]}
    | {"aggregate": "min", "deterministic": False, "keep_alive": -1},
    {"problem": "How many are left?", "steps": ["First three.", "So three."], "priority": 1},
    {"text_1": "How many are left?", "text_2": ["Three.", "None."]},
)

_TEXT = {"type": "text", "text": "3 + 4?"}
TOOL = {"type": "function", "function": _FUNCTION}
_TOOLS = [TOOL]
_PICK = {"type": "function", "function": {"name": "add"}}
_FORMAT = {"type": "json_schema", "json_schema": {"name": "sum", "schema": _SCHEMA, "strict": True}}
_CHAT: tuple[dict[str, Any], ...] = (
    {
        "messages": [
            {"role": "system", "content": "Be brief."},
            {"role": "user", "content": [_TEXT], "name": "Bo"},
            {"role": "assistant", "content": None, "tool_calls": [_CALL]},
            {"role": "tool", "tool_call_id": "c-1", "content": "7"},
        ],
        "tools": _TOOLS,
        "tool_choice": "auto",
        "parallel_tool_calls": False,
        "max_tokens": 6,
        "temperature": 0.5,
    },
    {
        "messages": _SAY,
        "max_completion_tokens": 6,
        "stop": ["x"],
        "n": 2,
        "seed": 4,
        "stream": True,
        "stream_options": {"include_usage": True},
        "reasoning_effort": "low",
        "logprobs": True,
        "top_logprobs": 1,
    },
    {
        "messages": _SAY,
        "max_tokens": 6,
        "response_format": _FORMAT,
        "tools": _TOOLS,
        "tool_choice": _PICK,
        "chat_template_kwargs": {"enable_thinking": False},
        "logit_bias": {"5": 1},
        "keep_alive": "10m",
    },
)
_THOUGHT = {"content": [{"type": "reasoning_text", "text": "I add."}], "encrypted_content": None}
_RESPONSES: tuple[dict[str, Any], ...] = (
    {
        "input": [
            {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "3?"}]},
            {"type": "reasoning", "id": "rs_1", "summary": [], **_THOUGHT},
            {"type": "function_call", "name": "add", "arguments": '{"a":3}', "call_id": "c-1"},
            {"type": "function_call_output", "call_id": "c-1", "output": "7"},
        ],
        "tools": [{"type": "function", **_FUNCTION, "strict": False}],
        "instructions": "Be brief.",
        "tool_choice": "auto",
        "max_output_tokens": 6,
        "store": False,
        "include": ["reasoning.encrypted_content"],
        "reasoning": {"effort": "low", "summary": "auto"},
    },
    {
        "text": {"format": {"type": "json_schema", "name": "sum", "schema": _SCHEMA}},
        "input": "3 + 4?",
        "max_output_tokens": 6,
        "stream": True,
        "top_logprobs": 1,
        "metadata": {"a": "b"},
    },
)
_USED = [
    {"type": "thinking", "thinking": "I add.", "signature": "x"},
    {"type": "tool_use", "id": "t-1", "name": "add", "input": {"a": 3}},
]
_RESULT = {"tool_use_id": "t-1", "content": [{"type": "text", "text": "7"}], "is_error": False}
_MESSAGES: tuple[dict[str, Any], ...] = (
    {
        "system": [{**_TEXT, "cache_control": {"type": "ephemeral"}}],
        "messages": [
            *_SAY,
            {"role": "assistant", "content": _USED},
            {"role": "user", "content": [{"type": "tool_result", **_RESULT}]},
        ],
        "tools": [{"name": "add", "description": "Adds.", "input_schema": _SCHEMA}],
        "tool_choice": {"type": "auto"},
        "max_tokens": 6,
        "metadata": {"user_id": "me"},
    },
    {
        "messages": _SAY,
        "max_tokens": 6,
        "stream": True,
        "stop_sequences": ["x"],
        "temperature": 1,
        "top_k": 5,
        "thinking": {"type": "enabled", "budget_tokens": 1024},
    },
)
_SOLVE: dict[str, Any] = {"problem": "How many are left?", "n": 2}
BODIES: Mapping[str, tuple[dict[str, Any], ...]] = {
    CHAT: _CHAT,
    RESPONSES: _RESPONSES,
    MESSAGES: _MESSAGES,
    COUNT: ({"messages": _SAY, "tools": [{"name": "add", "input_schema": _SCHEMA}]},),
    "/v1/completions": (
        {"prompt": ["1 + 1 =", "2 + 2 ="], "max_tokens": 4, "echo": True, "logprobs": 1},
        {"prompt": [[5, 6, 7]], "max_tokens": 4, "stream": True, "suffix": None, "best_of": 1},
    ),
    "/tokenize": ({"messages": _SAY}, {"prompt": "3 + 4", "add_special_tokens": True}),
    "/detokenize": ({"tokens": [5, 6, 7]},),
    "/v1/solve": (
        {**_SOLVE, "strategy": "beam", "max_tokens": 40, "options": {}, "keep_alive": -1}
        | {"early_exit": {"policy": "reward"}},
        {"messages": _SAY, "n": 2, "stream": True, "answers": "text", "temperature": 0.7},
    ),
    LATER: (
        {**_SOLVE, "id": "run-0123456789ab", "strategy": "dvts", "step_rule": "entropy"}
        | {"judge": "steps", "deadline_s": 2.5, "token_budget": 500},
    ),
    "/v1/score": _SCORE,
    "/score": _SCORE,
}
"""Valid bodies for each route that takes one. Those of protocols lack the model."""

OWN = ("/v1/solve", LATER, "/v1/score", "/score")
PROTOCOLS = tuple(path for path in BODIES if path not in OWN)
SEARCHES = (CHAT, RESPONSES, MESSAGES)
"""Protocols in which a model's name may hold a search."""

_scalars = st.one_of(
    st.none(),
    st.booleans(),
    st.sampled_from([0, 1, -1, 2, 7, 16, 100, 2**31, 2**53, 2**63, 2**64, -(2**63), 10**30]),
    st.sampled_from([0.0, 0.5, -0.5, 1.5, 1e308, -1e-320]),
    st.sampled_from(["", " ", "auto", "none", "required", "user", "text", "x", "\x00", "é", "🙂"]),
    st.sampled_from(["json_object", "image_url", "input_image", "tool", "{}", "[", "a" * 300]),
    st.text(max_size=8),
)
_names = st.one_of(st.sampled_from(["type", "text", "content", "name", "a"]), st.text(max_size=4))
values = st.recursive(
    _scalars,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3), st.dictionaries(_names, inner, max_size=3)
    ),
    max_leaves=6,
)
"""JSON values of any kind."""

FIELDS = {
    *(name for bodies in BODIES.values() for body in bodies for name in body),
    *("min_p", "top_p", "top_k", "min_tokens", "ignore_eos", "stop_token_ids", "bad_words"),
    *("prompt_logprobs", "truncate_prompt_tokens", "structured_outputs", "priority"),
    *("use_beam_search", "length_penalty", "add_generation_prompt", "echo", "functions"),
    *("continue_final_message", "chat_template", "documents", "mm_processor_kwargs"),
    *("request_id", "return_token_ids", "cache_salt", "kv_transfer_params", "vllm_xargs"),
    *("previous_response_id", "background", "truncation", "prompt", "conversation"),
    *("search", "continues", "pair", "branching", "aggregate", "selection", "seed"),
    *("logits_processors", "allowed_token_ids", "include_reasoning", "service_tier"),
}
"""Names of fields that some route knows."""
_fields = st.sampled_from(sorted(FIELDS))


def _list_places(node: Any) -> Iterator[tuple[Any, Any]]:
    """Each container of a body with each key or index in it."""
    items = node.items() if isinstance(node, dict) else enumerate(node)
    for key, value in items:
        yield node, key
        if isinstance(value, dict | list):
            yield from _list_places(value)


@st.composite
def change_bodies(draw: st.DrawFn, path: str) -> dict[str, Any]:
    """A valid body of the route with up to three changes."""
    body: dict[str, Any] = copy.deepcopy(draw(st.sampled_from(BODIES[path])))
    for _ in range(draw(st.integers(1, 3))):
        places = list(_list_places(body))
        how = draw(st.sampled_from(["replace", "replace", "remove", "add", "double"]))
        if how == "add" or not places:
            body[draw(_fields)] = draw(values)
            continue
        holder, key = places[draw(st.integers(0, len(places) - 1))]
        if how == "replace":
            holder[key] = draw(values)
        elif how == "remove":
            del holder[key]
        elif isinstance(holder, list):
            holder.append(copy.deepcopy(holder[key]))
    return body


# ---------------------------------------------------------------- answers


def check_answer(path: str, answer: httpx.Response) -> None:
    """No answer is a 5xx but 503, and each error has its protocol's form."""
    status = answer.status_code
    assert status < 500 or status == 503, answer.text
    if status >= 400:
        check_error(path, answer.json())
    elif answer.headers["content-type"].startswith("text/event-stream"):
        check_events(path, answer.text)
    else:
        answer.json()


def check_error(path: str, body: Any) -> None:
    error = body["error"]
    assert isinstance(error["message"], str)
    assert error["message"]
    assert isinstance(error["type"], str)
    if path.startswith(MESSAGES):
        assert body["type"] == "error"
    else:
        assert {"param", "code"} <= error.keys()


def check_events(path: str, text: str) -> None:
    """A stream ends by its protocol's last event, or by an error in the protocol's form."""
    blocks = [block for block in text.split("\n\n") if "data: " in block]
    assert blocks, "a stream says something"
    *_, before, last = ["{}", *(block.partition("data: ")[2] for block in blocks)]
    event = json.loads(before if last == "[DONE]" else last)
    if path in (CHAT, "/v1/completions"):
        assert blocks[-1].endswith("[DONE]")
        if "error" in event:
            check_error(path, event)
    elif path == RESPONSES:
        ends = ("response.completed", "response.incomplete", "response.failed", "error")
        assert event["type"] in ends
    elif path == MESSAGES:
        assert event["type"] in ("message_stop", "error")
        if event["type"] == "error":
            check_error(path, event)
