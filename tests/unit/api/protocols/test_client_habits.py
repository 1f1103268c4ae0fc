"""What agents and editors send is put into the form that vLLM's handlers read, on every route,
plain and by a search."""

import copy
from typing import Any

import pytest

from flashedge.api.paths import CHAT, COMPLETIONS, MESSAGES, RESPONSES
from flashedge.api.protocols import client_habits
from flashedge.api.protocols.client_habits import NO_ARGUMENTS, normalize, steady, steady_prompt
from flashedge.errors import RequestError
from flashedge.models.specs import ModelSpec
from flashedge.optimizations import Features
from tests.support.api_rig import ask, client_of
from tests.support.fake_service import FakeService

SAY = [{"role": "user", "content": "hi"}]
ASK: dict[str, Any] = {"model": "bundled", "messages": SAY}
ARGUMENTS = {"a": {"type": "integer"}}
SCHEMA = {"type": "object", "properties": ARGUMENTS, "required": ["a"]}
REFERENCE: dict[str, Any] = {"$ref": "#/$defs/a", "$defs": {}}
COUNT = f"{MESSAGES}/count_tokens"
CONVERSATIONS = (CHAT, RESPONSES, MESSAGES)
ALL = (*CONVERSATIONS, COMPLETIONS)


def build_tool(path: str, *schema: Any, name: str = "f") -> dict[str, Any]:
    """A tool in a route's form. schema: of its arguments, none where it is left out."""
    key = "parameters" if path in (CHAT, RESPONSES) else "input_schema"
    function = {"name": name, **(dict.fromkeys([key], *schema) if schema else {})}
    if path == CHAT:
        return {"type": "function", "function": function}
    return {"type": "function"} | function if path == RESPONSES else function


def read_schema(tool: dict[str, Any]) -> Any:
    function = tool.get("function", tool)
    return function["parameters" if "type" in tool else "input_schema"]


async def send(path: str, fields: dict[str, Any], model: str = "bundled") -> dict[str, Any]:
    service, answer = await ask(path, {**ASK, **fields, "model": model})
    assert answer.status_code == 200, answer.text
    ((_, body, _),) = service.protocols.asked
    return {name: value for name, value in body.items() if name not in ASK}


def change(
    path: str, fields: dict[str, Any], parser: str | None = None, most: int = 1024
) -> dict[str, Any]:
    body = copy.deepcopy(fields)
    model = ModelSpec(source="", dtype="", max_model_len=most, reasoning_parser=parser)
    normalize(path, body, model)
    return body


DISABLED = {"thinking": {"type": "disabled"}}
MEANINGLESS: list[tuple[dict[str, Any], dict[str, Any]]] = [
    *(({"tools": none}, {}) for none in ([], None)),
    ({"tools": [], "tool_choice": "auto"}, {}),
    ({"tools": [], "tool_choice": "none", "parallel_tool_calls": True}, {}),
    ({"tool_choice": None, "parallel_tool_calls": False}, {}),
    *(({"tool_choice": said}, {}) for said in ("auto", "none", {"type": "auto"}, {"type": "none"})),
    ({"tool_choice": {"type": "allowed_tools", "mode": "auto", "tools": []}}, {}),
    ({"tool_choice": {"type": "allowed_tools", "allowed_tools": {"mode": "auto"}}}, {}),
    ({"thinking": {"type": "enabled", "budget_tokens": 1024}}, {}),
    ({"thinking_token_budget": -1}, {"thinking_token_budget": -1}),
    ({"thinking": {"type": "adaptive"}}, {"thinking": {"type": "adaptive"}}),
    ({"web_search_options": None, "audio": None, "container": None}, {}),
    ({"metadata": None, "n": None, "service_tier": None, "unknown": 1}, {"unknown": 1}),
    ({"max_tokens": 1024}, {"max_tokens": 1024}),
    ({"max_tokens": 32000}, {"max_tokens": 1024}),
    ({"max_completion_tokens": 5000}, {"max_completion_tokens": 1024}),
    ({"max_output_tokens": 5000, "max_tokens": 7}, {"max_output_tokens": 1024, "max_tokens": 7}),
    (DISABLED | {"max_tokens": 2000}, DISABLED | {"max_tokens": 1024}),
]
"""Fields that a conversation's request may have, and what the handlers see of them."""


@pytest.mark.parametrize("model", ["bundled", "bundled:beam-4"])
@pytest.mark.parametrize("path", CONVERSATIONS)
@pytest.mark.parametrize(("given", "kept"), MEANINGLESS, ids=lambda v: str(v)[:50])
async def test_what_means_nothing_is_left_out(
    given: dict[str, Any], kept: dict[str, Any], path: str, model: str
) -> None:
    assert await send(path, given, model) == kept


CALLING = {"role": "assistant", "content": None, "tool_calls": [{"id": "a", "type": None}]}
USING = {"role": "assistant", "content": [{"type": "tool_use", "input": {"x": None}}]}
TURN, USER, SENT = {"role": "assistant", "content": "7"}, {"role": "user"}, {"type": "message"}
NOTHING = {"refusal": None, "name": None, "tool_calls": []}
REASONING = {"type": "reasoning", "summary": []}
PART, OUTPUT = {"type": "text", "text": "a"}, {"type": "output_text", "text": "a"}
HISTORIES: list[tuple[str, dict[str, Any], dict[str, Any]]] = [
    ("messages", TURN | NOTHING, TURN),
    ("messages", CALLING, CALLING),
    ("messages", USER | {"content": [PART | {"citations": None}]}, USER | {"content": [PART]}),
    ("messages", USING, USING),
    ("input", REASONING | {"content": None, "encrypted_content": None}, REASONING),
    ("input", SENT | {"content": [OUTPUT | {"logprobs": None}]}, SENT | {"content": [OUTPUT]}),
]
"""A message as a client's library writes it from an answer, and what the handlers see."""


@pytest.mark.parametrize(("name", "turn", "seen"), HISTORIES, ids=lambda v: str(v)[:50])
def test_what_a_library_leaves_empty_is_left_out(
    name: str, turn: dict[str, Any], seen: dict[str, Any]
) -> None:
    for path in CONVERSATIONS:
        assert change(path, {name: [turn, "odd"]}) == {name: [seen, "odd"]}
    odd = {"messages": "odd", "input": {"a": None}}
    assert change(CHAT, odd) == odd


@pytest.mark.parametrize("path", ALL)
@pytest.mark.parametrize("options", [{}, {"include_usage": True}, None])
async def test_stream_options_mean_something_to_streams_only(path: str, options: Any) -> None:
    for stream in (False, None, "left out"):
        given = {"stream_options": options} | ({} if stream == "left out" else {"stream": stream})
        assert "stream_options" not in change(path, given)
    streamed = {"stream": True, "stream_options": {"include_usage": True}}
    assert change(path, streamed) == streamed


@pytest.mark.parametrize("path", [CHAT, RESPONSES, MESSAGES, COUNT, "/tokenize"])
@pytest.mark.parametrize(
    ("schema", "expected"),
    [
        *((schema, NO_ARGUMENTS) for schema in ((), (None,), ({},), ({"type": "object"},))),
        (({"type": "object", "properties": None, "required": None},), NO_ARGUMENTS),
        (({"properties": ARGUMENTS},), {"type": "object", "properties": ARGUMENTS}),
        *(((one,), one) for one in (SCHEMA, REFERENCE, {"anyOf": [SCHEMA]}, "text")),
    ],
    ids=lambda v: str(v)[:40],
)
def test_arguments_are_an_object(path: str, schema: tuple[Any, ...], expected: Any) -> None:
    tool = build_tool(CHAT if path == "/tokenize" else path, *schema)
    first, *others = change(path, {"tools": [tool, "no tool", {"x": 1}]})["tools"]
    assert read_schema(first) == expected
    assert others == ["no tool", {"x": 1}]


def test_the_tools_of_a_namespace_have_objects_too_and_texts_have_none() -> None:
    custom = {"type": "custom", "name": "patch", "format": {"type": "text"}}
    inner = {"type": "namespace", "name": "group", "tools": [build_tool(RESPONSES), custom]}
    body = change(RESPONSES, {"tools": [inner, custom]})
    assert body["tools"][0]["tools"] == [build_tool(RESPONSES, NO_ARGUMENTS), custom]
    assert body["tools"][1] == custom


@pytest.mark.parametrize("path", CONVERSATIONS)
def test_no_schema_is_shared_between_tools(path: str) -> None:
    tools = change(path, {"tools": [build_tool(path), build_tool(path, name="g")]})["tools"]
    read_schema(tools[0])["title"] = "f"
    assert read_schema(tools[1]) == {"type": "object", "properties": {}}


FORCED = [
    "required",
    "any",
    {"type": "any"},
    {"type": "function", "function": {"name": "f"}},
    *({"type": kind, "name": "f"} for kind in ("function", "tool")),
    {"type": "allowed_tools", "mode": "required", "tools": []},
]
HOSTED = (
    *("web_search", "web_search_preview", "file_search", "mcp", "code_interpreter", "computer"),
    *("image_generation", "local_shell", "shell", "apply_patch", "tool_search"),
)
OWN = [{"type": "function", "name": "f", "parameters": SCHEMA}]
WEB = {"type": "web_search"}
WHOLE, BUDGET = "send the whole conversation", "thinking_token_budget"
ANTHROPIC = " is Anthropic's own; leave it out, or give a tool of your own with an input_schema"
REFUSED: list[tuple[tuple[str, ...], dict[str, Any], str, str]] = [
    *((CONVERSATIONS, {"tool_choice": each}, "tool_choice", "no tools") for each in FORCED),
    (CONVERSATIONS, {"tools": [], "tool_choice": "required"}, "tool_choice", "no tools"),
    *(((RESPONSES,), {"tools": [{"type": each}]}, "tools", f"'{each}'") for each in HOSTED),
    ((RESPONSES,), {"tools": [*OWN, {"type": "web_search_preview"}]}, "tools", "OpenAI runs"),
    ((RESPONSES,), {"tools": [*OWN, WEB], "tool_choice": WEB}, "tools", "OpenAI runs"),
    ((CHAT,), {"web_search_options": {}}, "web_search_options", "leave it out"),
    ((CHAT,), {"audio": {"voice": "ash", "format": "wav"}}, "audio", "leave it out"),
    ((MESSAGES, COUNT), {"mcp_servers": [{"url": "http://x"}]}, "mcp_servers", "leave it out"),
    ((MESSAGES, COUNT), {"container": {"id": "c"}}, "container", "leave it out"),
    *((ALL, {"prompt": "x", BUDGET: most}, BUDGET, "does not think") for most in (16, 0)),
    ((CHAT,), {"tools": [{"type": "custom", "custom": {"name": "f"}}]}, "tools", "'custom'"),
    ((CHAT,), {"functions": [{"name": "f"}]}, "functions", "send tools"),
    ((CHAT,), {"function_call": {"name": "f"}}, "function_call", "send tool_choice"),
    ((COMPLETIONS,), {"prompt": ["x"] * 300}, "prompt", "several requests"),
    ((COMPLETIONS,), {"prompt": [[1]] * 100, "n": 3}, "prompt", "300 texts"),
    ((RESPONSES,), {"previous_response_id": "r"}, "previous_response_id", WHOLE),
    ((RESPONSES,), {"conversation": {"id": "c"}}, "conversation", "none is stored"),
    ((RESPONSES,), {"background": True}, "background", "POST /v1/runs"),
    *(
        (
            (MESSAGES, COUNT),
            {"tools": [{"type": each, "name": "x"}]},
            "tools",
            f"{each!r}{ANTHROPIC}",
        )
        for each in ("web_search_20250305", "bash_20250124")
    ),
]


@pytest.mark.parametrize("model", ["bundled", "bundled:beam-4"])
@pytest.mark.parametrize(("paths", "fields", "param", "words"), REFUSED, ids=lambda v: str(v)[:60])
async def test_what_can_not_be_done_is_refused_by_name(
    paths: tuple[str, ...], fields: dict[str, Any], param: str, words: str, model: str
) -> None:
    for path in paths:
        service, answer = await ask(path, {**ASK, **fields, "model": model})
        assert answer.status_code == 400, (path, answer.text)
        error = answer.json()["error"]
        assert words in error["message"]
        assert error.get("param", param) == param, "Anthropic's form has no param"
        assert not service.protocols.asked
        assert not service.handles


def test_a_list_of_tokens_is_one_prompt() -> None:
    for prompt in ([7] * 300, "x" * 300, ["x"] * 256):
        assert change(COMPLETIONS, {"prompt": prompt}) == {"prompt": prompt}


async def test_codexs_web_search_is_left_out_beside_its_own_tools() -> None:
    given = {"tools": [*OWN, {"type": "web_search", "external_web_access": True}]}
    for model in ("bundled", "bundled:beam-4"):
        assert await send(RESPONSES, given, model) == {"tools": OWN}


def test_the_old_form_of_tools_is_passed_over_where_it_asks_for_nothing() -> None:
    for functions in ({}, {"functions": []}, {"function_call": "none"}):
        change(CHAT, functions)


def test_the_format_of_messages_is_read_under_both_names() -> None:
    shape = {"type": "json_schema", "schema": SCHEMA}
    for path in (MESSAGES, COUNT):
        assert change(path, {"output_format": shape}) == {"output_config": {"format": shape}}
        both = {"output_format": shape, "output_config": {"effort": "low"}}
        assert change(path, both) == {"output_config": {"effort": "low", "format": shape}}
        new = {"output_config": {"format": {"type": "json_schema"}}}
        assert change(path, {"output_format": shape, **new}) == new, "the new name goes first"
    assert change(CHAT, {"output_format": shape}) == {"output_format": shape}


def test_a_model_that_thinks_has_its_budget() -> None:
    given = {"thinking": {"type": "enabled", "budget_tokens": 1024}, "thinking_token_budget": 16}
    assert change(MESSAGES, given, "qwen3") == given
    assert change(MESSAGES, {"thinking": given["thinking"]}) == {}
    assert change(MESSAGES, DISABLED) == DISABLED


@pytest.mark.parametrize("limit", client_habits.LIMITS)
def test_a_limit_is_lowered_with_its_budget(limit: str) -> None:
    given = {limit: 64000, "thinking": {"type": "enabled", "budget_tokens": 63999}}
    told = {limit: 32768, "thinking": {"type": "enabled", "budget_tokens": 32767}}
    assert change(MESSAGES, given, "qwen3", 32768) == told
    assert change(MESSAGES, given, "qwen3", 1024) == {limit: 1024}
    text = {limit: "64000"}
    assert change(MESSAGES, text) == text, "the handler refuses it"


def test_a_tool_choice_of_a_wrong_kind_is_the_handlers() -> None:
    with pytest.raises(RequestError, match="no tools"):
        change(CHAT, {"tool_choice": {"odd": 1}})
    assert change(CHAT, {"tools": "x", "tool_choice": 5}) == {"tools": "x", "tool_choice": 5}


# ---------------------------------------------------------------- steady instructions

REST = "You are a coding agent."


def head(turn: str) -> str:
    return f"x-anthropic-billing-header: cc_version=2.1.1.{turn}; cc_entrypoint=cli; cch={turn};"


def left(turn: str) -> str:
    return f"<total_tokens>{turn}000 tokens left</total_tokens>"


def part(text: str, kind: str = "text") -> dict[str, Any]:
    return {"type": kind, "text": text, "cache_control": {"type": "ephemeral"}}


def list_bodies(turn: str) -> list[dict[str, Any]]:
    texts = (f"{head(turn)}\n{REST}", f"{head(turn)}{REST}", f"{REST}\n{left(turn)}")
    bodies: list[dict[str, Any]] = []
    for text in texts:
        bodies += [
            {"system": text, "messages": SAY},
            {"system": [part(text)], "messages": SAY},
            {"messages": [{"role": "system", "content": text}, *SAY]},
            {"messages": [{"role": "developer", "content": [part(text)]}, *SAY]},
            {"instructions": text, "input": "hi"},
            {"input": [{"role": "system", "content": [part(text, "input_text")]}, *SAY]},
        ]
    alone = [{"role": "system", "content": said} for said in (left(turn), [part(left(turn))])]
    bodies += [
        {"system": [part(head(turn)), part(REST)], "messages": SAY},
        {"system": [part(REST), part(head(turn))], "messages": SAY},
        *({"system": REST, "messages": [*SAY, late, *SAY]} for late in alone),
        *({"messages": [*SAY, late]} for late in alone),
        *({"instructions": REST, "input": [*SAY, late, *SAY]} for late in alone),
    ]
    return bodies


@pytest.mark.parametrize("at", range(len(list_bodies("a"))))
def test_instructions_stay_from_turn_to_turn(at: int) -> None:
    first, second = list_bodies("a1")[at], list_bodies("b2")[at]
    assert first != second
    told = REST in str(first)
    steady_prompt(first)
    steady_prompt(second)
    assert first == second
    assert not [word for word in ("tokens left", "billing") if word in str(first)]
    assert ("hi" in str(first), REST in str(first)) == (True, told)


def test_the_instructions_around_stay() -> None:
    for text, kept in (
        (f"{head('a')}\n{REST}", REST),
        (f"{head('a')}{REST}", REST),
        (f"{head('a')} {REST}", REST),
        (f"{REST}{head('a')}", REST),
        (f"x-anthropic-billing-header: a1b2\n{REST}", REST),
        (f"x-anthropic-billing-header:\n{REST}", REST),
        (f"{REST}\nx-anthropic-billing-header: a1b2", f"{REST}\n"),
        (f"{REST}\n{left('a')}\n{REST}", f"{REST}\n{REST}"),
    ):
        assert steady(text) == kept


@pytest.mark.parametrize(
    "text",
    [
        REST,
        "",
        " \n",
        "Never write an x-anthropic-billing-header of your own.",
        "Leave the x-anthropic-billing-header: no one needs it.",
        "Say how many tokens are left: <total_tokens>.",
        "<total_tokens>many\n\n tokens left</total_tokens>",
    ],
)
def test_other_instructions_stay_as_they_are(text: str) -> None:
    assert steady(text) == text
    for body in ({"system": text}, {"system": [part(text)]}):
        before = copy.deepcopy(body)
        steady_prompt(body)
        if text:
            assert body == before


def test_what_is_no_instruction_stays() -> None:
    said = f"{head('a')}\n{left('a')}"
    turns = {"user": said, "assistant": [part(said)], "tool": said, "system": 5}
    messages = [{"role": role, "content": content} for role, content in turns.items()]
    body = {"messages": [*messages, "odd"], "input": "odd", "system": {"odd": said}}
    body["instructions"] = 7
    before = copy.deepcopy(body)
    steady_prompt(body)
    assert body == before


@pytest.mark.parametrize(("path", "at"), [(MESSAGES, 0), (CHAT, 2), (RESPONSES, 4)])
@pytest.mark.parametrize("model", ["bundled", "bundled:beam-4"])
async def test_the_setting_turns_it_off(path: str, at: int, model: str) -> None:
    for setting in (True, False):
        service = FakeService()
        async with client_of(service, features=Features(steady_prompts=setting)) as client:
            await client.post(path, json={**list_bodies("a")[at], "model": model})
        ((_, seen, _),) = service.protocols.asked
        assert ("billing" in str(seen)) is not setting
        assert REST in str(seen)
