"""Puts the bodies that agents and editors really send into the form that vLLM's handlers read.

All routes pass here before a search is chosen, so a request means the same plain and by a search.

| what clients send | what becomes of it |
|---|---|
| a field that is null, of the request, a message or a part of one | as left out |
| no tools, written as `[]` | left out, and so are the fields about calls that ask for none |
| a tool whose arguments have no schema | its arguments are an object |
| `stream_options` without a stream | left out |
| `thinking` with a budget, for a model that does not think | left out: no thought exceeds it |
| a limit of tokens that no context reaches | lowered |
| `output_format` of messages | as `output_config.format` |
| a call that no tool can answer, a tool that the protocol's owner runs, `functions` | refused |
| `thinking_token_budget` for a model that does not think | refused |
| more prompts than are ever generated at once | refused |
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from flashedge.api.protocols.paths import CHAT, COMPLETIONS, MESSAGES, RESPONSES
from flashedge.api.specs import shorten
from flashedge.engine.http_requests import MAX_CHOICES
from flashedge.errors import RequestError
from flashedge.models.specs import ModelSpec

LIMITS = ("max_tokens", "max_completion_tokens", "max_output_tokens")
"""The protocols' names for the most tokens of an answer."""
LEAST_THINKING = 1024
"""Least budget of thinking in Anthropic's protocol. It must be less than max_tokens."""
NO_ARGUMENTS = {"type": "object", "properties": {}}
"""The schema of a tool without parameters. Arguments are an object in every protocol."""
_SHAPES = frozenset({"type", "$ref", "anyOf", "oneOf", "allOf", "enum", "const", "not", "if"})
"""Keywords by which a schema says what kind of value it describes."""
_OWN = frozenset({"function", "custom", "namespace"})
"""Kinds of tools in `/v1/responses` that the client runs."""
_SERVICES = {
    CHAT: ("web_search_options", "audio"),
    MESSAGES: ("mcp_servers", "container"),
    f"{MESSAGES}/count_tokens": ("mcp_servers", "container"),
}
"""Fields that ask for what only the protocol's owner can do."""
_HABIT = "web_search"
"""Codex names this hosted tool in every request, beside its own."""


def normalize(path: str, body: dict[str, Any], model: ModelSpec) -> None:
    """Change a body for `model` into the form that the handlers read.

    Raises RequestError for what can't be done and must not be passed over.
    """
    for name in [name for name, value in body.items() if value is None]:
        del body[name]
    for name in ("messages", "input"):
        if isinstance(turns := body.get(name), list):
            body[name] = [_drop_nulls(turn) for turn in turns]
    if not body.get("stream"):
        body.pop("stream_options", None)
    if path == COMPLETIONS:
        refuse_many(body)
    else:
        if path == CHAT:
            refuse_other_tools(body)
        elif path == RESPONSES:
            refuse_memory(body)
            refuse_hosted_tools(body)
        elif path.startswith(MESSAGES):
            refuse_foreign_tools(body)
            move_format(body)
        refuse_services(path, body)
        drop_empty_tools(body)
        give_schemas(path, body)
    if model.reasoning_parser is None:
        drop_budgets(body)
    limit_tokens(body, model.max_model_len)


def _drop_nulls(turn: Any) -> Any:
    """A message or item without the fields that a client's library writes as null. The arguments of
    a call keep their nulls."""
    if not isinstance(turn, dict):
        return turn
    kept = {name: value for name, value in turn.items() if value is not None}
    if kept.get("tool_calls") == []:
        del kept["tool_calls"]
    if "role" in turn and "content" in turn:
        kept.setdefault("content", None)
    if isinstance(parts := kept.get("content"), list):
        kept["content"] = [_drop_nulls(part) for part in parts]
    return kept


# ---------------------------------------------------------------- tools


def drop_empty_tools(body: dict[str, Any]) -> None:
    """Leave out an empty list of tools, and without tools what asks for no call.

    Raises RequestError for a call that no tool can answer.
    """
    if body.get("tools", []) != []:
        return
    if _demands_call(body.get("tool_choice")):
        raise RequestError(
            "tool_choice asks for a call, but the request has no tools",
            hint="give the tool in tools, or leave out tool_choice",
            param="tool_choice",
        )
    for name in ("tools", "tool_choice", "parallel_tool_calls"):
        body.pop(name, None)


def _demands_call(choice: Any) -> bool:
    if not isinstance(choice, Mapping):
        return choice in ("required", "any")
    kind = choice.get("type")
    if kind == "allowed_tools":
        inner = choice.get(kind)  # chat completions nest it, responses don't
        return bool((inner if isinstance(inner, Mapping) else choice).get("mode") == "required")
    return kind not in ("auto", "none")


def give_schemas(path: str, body: Mapping[str, Any]) -> None:
    """Let every tool say that its arguments are an object. Else a grammar allows any JSON."""
    for tool in _list_tools(body):
        kind = tool.get("type", "custom")
        if path.startswith(MESSAGES):
            if "name" in tool and (kind == "custom" or "input_schema" in tool):
                tool["input_schema"] = _complete(tool.get("input_schema"))
        elif path == RESPONSES:
            if kind == "function":
                tool["parameters"] = _complete(tool.get("parameters"))
            elif kind == "namespace":
                give_schemas(path, tool)
        elif isinstance(function := tool.get("function"), dict):
            function["parameters"] = _complete(function.get("parameters"))


def _complete(schema: Any) -> Any:
    """A schema of arguments. Some clients write its empty parts as null."""
    if schema is None:
        return dict(NO_ARGUMENTS)
    if not isinstance(schema, dict):
        return schema
    kept = {name: value for name, value in schema.items() if value is not None}
    if kept.keys() <= {"type"} and kept.get("type", "object") == "object":
        return dict(NO_ARGUMENTS)
    return kept if _SHAPES & kept.keys() else {"type": "object", **kept}


def _list_tools(body: Mapping[str, Any]) -> list[dict[str, Any]]:
    tools = body.get("tools")
    return [tool for tool in tools if isinstance(tool, dict)] if isinstance(tools, list) else []


# ---------------------------------------------------------------- refusals


def refuse_hosted_tools(body: dict[str, Any]) -> None:
    """Raises RequestError for a tool that OpenAI runs. Codex's web_search is left out."""
    kinds = [kind for tool in _list_tools(body) if isinstance(kind := tool.get("type"), str)]
    choice = body.get("tool_choice")
    chosen = choice.get("type") if isinstance(choice, Mapping) else None
    has_own = any(kind in _OWN for kind in kinds)
    for kind in kinds:
        if kind not in _OWN and not (kind == _HABIT and has_own and chosen != _HABIT):
            raise RequestError(
                f"the tool {shorten(kind)!r} is one that OpenAI runs",
                hint="leave it out, or give a function of your own",
                param="tools",
            )
    if kinds:
        hosted = [tool for tool in _list_tools(body) if tool.get("type") == _HABIT]
        body["tools"] = [tool for tool in body["tools"] if tool not in hosted]


def refuse_foreign_tools(body: Mapping[str, Any]) -> None:
    """Raises RequestError for a tool that Anthropic runs, or whose schema only its models know."""
    for tool in _list_tools(body):
        kind = tool.get("type")
        if isinstance(kind, str) and kind != "custom" and "input_schema" not in tool:
            raise RequestError(
                f"the tool {shorten(kind)!r} is Anthropic's own",
                hint="leave it out, or give a tool of your own with an input_schema",
                param="tools",
            )


def refuse_other_tools(body: Mapping[str, Any]) -> None:
    """Raises RequestError for tools of chat completions that are no functions, and for the form of
    functions before 2024."""
    for tool in _list_tools(body):
        kind = tool.get("type", "function")
        if isinstance(kind, str) and kind != "function":
            raise RequestError(
                f"a tool of the kind {shorten(kind)!r} can't be called here",
                hint="give a function",
                param="tools",
            )
    for old, new in (("functions", "tools"), ("function_call", "tool_choice")):
        if body.get(old) not in ([], "none", "auto", None):
            raise RequestError(
                f"{old} is the old form of {new}, which is not read", hint=f"send {new}", param=old
            )


def refuse_services(path: str, body: Mapping[str, Any]) -> None:
    """Raises RequestError for a service of the protocol's owner."""
    for name in _SERVICES.get(path, ()):
        if body.get(name, []) != []:
            told = f"{name} asks for a service that only the protocol's owner has"
            raise RequestError(told, hint="leave it out", param=name)


def refuse_memory(body: Mapping[str, Any]) -> None:
    """Raises RequestError for what would need responses to be kept."""
    for name in ("previous_response_id", "conversation"):
        if body.get(name) is not None:
            raise RequestError(
                f"{name} names a response, but none is stored",
                hint="send the whole conversation as input",
                param=name,
            )
    if body.get("background") is True:
        raise RequestError(
            "responses are not made in the background, since none is stored",
            hint="stream it, or start a search by POST /v1/runs",
            param="background",
        )


def refuse_many(body: Mapping[str, Any]) -> None:
    """Raises RequestError for more prompts than are generated at once: to wait would not help."""
    prompts = body.get("prompt")
    if not isinstance(prompts, list) or not all(isinstance(p, str | list) for p in prompts):
        return
    n = body.get("n")
    choices = len(prompts) * (n if isinstance(n, int) else 1)
    if choices > MAX_CHOICES:
        raise RequestError(
            f"the request asks for {choices} texts; at most {MAX_CHOICES} are generated",
            hint="send the prompts in several requests",
            param="prompt",
        )


# ---------------------------------------------------------------- single fields


def move_format(body: dict[str, Any]) -> None:
    """Put the format of messages where it is read, from where it first was."""
    given = body.pop("output_format", None)
    config = body.setdefault("output_config", {}) if given is not None else None
    if isinstance(config, dict):
        config.setdefault("format", given)


def drop_budgets(body: dict[str, Any]) -> None:
    """Leave out the budget of thinking that agents send to any model.

    Raises RequestError for vLLM's own field, which nobody sends by habit.
    """
    budget = read_int(body, "thinking_token_budget")
    if budget is not None and budget >= 0:
        raise RequestError(
            "the model does not think, so thinking_token_budget limits nothing",
            hint="leave it out",
            param="thinking_token_budget",
        )
    thinking = body.get("thinking")
    if isinstance(thinking, Mapping) and thinking.get("type") == "enabled":
        del body["thinking"]


def limit_tokens(body: dict[str, Any], most: int) -> None:
    """Lower a limit of tokens that no context of `most` tokens can reach.

    Coding agents ask any model for as many as the largest can write. vLLM's handlers refuse that.
    """
    above = [name for name in LIMITS if (read_int(body, name) or 0) > most]
    for name in above:
        body[name] = most
    thinking = body.get("thinking")
    if above and isinstance(thinking, dict) and (read_int(thinking, "budget_tokens") or 0) >= most:
        if most > LEAST_THINKING:
            thinking["budget_tokens"] = most - 1
        else:
            del body["thinking"]


def read_int(body: Mapping[str, Any], name: str) -> int | None:
    value = body.get(name)
    return value if isinstance(value, int) and not isinstance(value, bool) else None
