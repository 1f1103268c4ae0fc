"""Puts the bodies that agents and editors really send into the form that vLLM's handlers read.

Bodies pass here before a search is chosen, so a request means the same with and without one.
With the feature `steady_prompts`, instructions lose what coding agents change in each request: KV
is reused only up to the first token that differs, and instructions stand first in a prompt.

| what clients send | what becomes of it |
|---|---|
| a null as a field of the request, a message or a part of one | left out |
| no tools, written as `[]` | left out, and so are the fields about calls that ask for none |
| a tool whose arguments have no schema | gets one that allows any object |
| `stream_options` without a stream | left out |
| `thinking` with a budget, for a model that does not think | left out: no thought exceeds it |
| a limit of tokens above the model's context | lowered to it |
| `output_format` of messages | becomes `output_config.format` |
| a call that no tool can answer, a tool that the protocol's owner runs, `functions` | refused |
| `thinking_token_budget` for a model that does not think | refused |
| more texts than can be generated at once | refused |
| Codex's `web_search` next to other tools | left out |
"""

import re
from collections.abc import Iterator, Mapping
from typing import Any

from flashedge.api.paths import CHAT, COMPLETIONS, MESSAGES, RESPONSES
from flashedge.api.specs import shorten
from flashedge.engine.http_requests import MAX_CHOICES
from flashedge.errors import RequestError
from flashedge.models.specs import ModelSpec

LIMITS = ("max_tokens", "max_completion_tokens", "max_output_tokens")
"""The protocols' names for the most tokens of an answer."""
LEAST_THINKING = 1024
"""Least `budget_tokens` in Anthropic's protocol, where it must also be less than max_tokens."""
NO_ARGUMENTS = {"type": "object", "properties": {}}
"""The schema of a tool without parameters. Arguments are an object in every protocol."""
_SHAPES = frozenset({"type", "$ref", "anyOf", "oneOf", "allOf", "enum", "const", "not", "if"})
"""Keywords by which a schema says what kind of value it describes."""
_CLIENT_KINDS = ("function", "custom", "namespace")
"""Kinds of tools in `/v1/responses` that the client runs."""
_WEB_SEARCH = "web_search"
"""Codex names this hosted tool in every request, next to its own tools."""
Refusals = Mapping[str, tuple[tuple[Any, ...], str, str]]
"""By field: (values that ask for nothing, what is wrong with any other value, what to do)."""


def _list_services(*names: str) -> Refusals:
    problem = "asks for a service that only the protocol's owner has"
    return {name: (([],), f"{name} {problem}", "leave it out") for name in names}


_NO_CALL: tuple[Any, ...] = ([], "none", "auto")
_STORED = "names a response, but none is stored"
_RESEND = "send the whole conversation as input"
_REFUSED: Mapping[str, Refusals] = {
    CHAT: {
        **_list_services("web_search_options", "audio"),
        **{
            old: (_NO_CALL, f"{old}, the old form of {new}, is not read", f"send {new}")
            for old, new in (("functions", "tools"), ("function_call", "tool_choice"))
        },
    },
    RESPONSES: {
        "previous_response_id": ((), f"previous_response_id {_STORED}", _RESEND),
        "conversation": ((), f"conversation {_STORED}", _RESEND),
        "background": (
            (False,),
            "responses are not made in the background, since none is stored",
            "stream it, or start a search by POST /v1/runs",
        ),
    },
    MESSAGES: _list_services("mcp_servers", "container"),
    f"{MESSAGES}/count_tokens": _list_services("mcp_servers", "container"),
}
"""Fields that are refused for any model, by route."""
_BILLING = "x-anthropic-billing-header:"
_HEADER = re.compile(
    rf"{_BILLING}[ \t]*(?:[\w-]+=[^;\s]*;?[ \t]*)+\n?|^{_BILLING}.*\n?", re.MULTILINE
)
"""A header that Claude Code writes into its instructions, with pairs of key and value. Instructions
may follow the last pair on the same line."""
_COUNTDOWN = re.compile(r"\n?<total_tokens>[^<\n]{1,40} tokens left</total_tokens>")
_ROLES = ("system", "developer")
"""Roles of instructions. A tuple, since a role that is no text may not be hashable."""


def normalize(path: str, body: dict[str, Any], model: ModelSpec) -> None:
    """Change a body for `model` into the form that the handlers read.

    Raises RequestError for what can't be done and must not be ignored.
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
        refuse_tools(path, body)
        refuse_fields(body, _REFUSED.get(path, {}))
        if path.startswith(MESSAGES):
            move_format(body)
        drop_empty_tools(body)
        give_schemas(path, body)
    if model.reasoning_parser is None:
        drop_budgets(body)
    limit_tokens(body, model.max_model_len)


def _drop_nulls(turn: Any) -> Any:
    """A message or item without the fields that a client's library writes as null. A null content
    stays, and so do nulls in the arguments of a call."""
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
    """Let every tool say that its arguments are an object. Otherwise a grammar allows any JSON."""
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
    """A schema of arguments that says they are an object, without parts that are null."""
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


def refuse_fields(body: Mapping[str, Any], refused: Refusals) -> None:
    """Raises RequestError for the first field that asks for what can't be done."""
    for field, (neutral, problem, hint) in refused.items():
        value = body.get(field)
        if value is not None and value not in neutral:
            raise RequestError(problem, hint=hint, param=field)


def refuse_tools(path: str, body: dict[str, Any]) -> None:
    """Raises RequestError for a tool that only the protocol's owner runs, or whose schema only the
    owner's models know. Codex's web_search is left out if there are other tools."""
    choice = body.get("tool_choice")
    chosen = choice.get("type") if isinstance(choice, Mapping) else None
    tools = _list_tools(body)
    has_others = any(tool.get("type") in _CLIENT_KINDS for tool in tools)
    if path == RESPONSES and chosen != _WEB_SEARCH and has_others:
        hosted = [tool for tool in tools if tool.get("type") == _WEB_SEARCH]
        body["tools"] = [tool for tool in body["tools"] if tool not in hosted]
    for tool in _list_tools(body):
        kind = tool.get("type")
        if not isinstance(kind, str):
            continue
        name = repr(shorten(kind))
        if path == CHAT and kind != "function":
            problem, hint = f"a tool of the kind {name} can't be called here", "give a function"
        elif path == RESPONSES and kind not in _CLIENT_KINDS:
            problem = f"the tool {name} is one that OpenAI runs"
            hint = "leave it out, or give a function of your own"
        elif path.startswith(MESSAGES) and kind != "custom" and "input_schema" not in tool:
            problem = f"the tool {name} is Anthropic's own"
            hint = "leave it out, or give a tool of your own with an input_schema"
        else:
            continue
        raise RequestError(problem, hint=hint, param="tools")


def refuse_many(body: Mapping[str, Any]) -> None:
    """Raises RequestError for more texts than can be generated at once: waiting would not help."""
    prompts = body.get("prompt")
    if not isinstance(prompts, list) or not all(isinstance(p, str | list) for p in prompts):
        return
    choices = len(prompts) * (read_int(body, "n") or 1)
    if choices > MAX_CHOICES:
        raise RequestError(
            f"the request asks for {choices} texts; at most {MAX_CHOICES} are generated",
            hint="send the prompts in several requests",
            param="prompt",
        )


def move_format(body: dict[str, Any]) -> None:
    """Move `output_format`, as the field was called at first, to `output_config.format`."""
    if (given := body.pop("output_format", None)) is None:
        return
    if isinstance(config := body.setdefault("output_config", {}), dict):
        config.setdefault("format", given)


def drop_budgets(body: dict[str, Any]) -> None:
    """Leave out the budget of thinking that agents send to any model.

    Raises RequestError for vLLM's own field, `thinking_token_budget`, which agents do not send.
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
    """Lower each limit of tokens that exceeds `most`, the length of the model's context.

    Coding agents ask any model for as many tokens as the largest model can write. vLLM's handlers
    would refuse that.
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


def steady(text: str) -> str:
    """Remove from a text of instructions what changes in each request."""
    return _COUNTDOWN.sub("", _HEADER.sub("", text))


def steady_prompt(body: dict[str, Any]) -> None:
    """Remove from a body's instructions what changes in each request, and leave out instructions
    without text."""
    for holder, name in _list_places(body):
        value = holder[name]
        if isinstance(value, str):
            holder[name] = steady(value)
        elif isinstance(value, list):
            holder[name] = [kept for part in value if (kept := _steady_part(part)) is not None]
    for name in ("system", "instructions"):
        if body.get(name) in ("", []):
            del body[name]
    for name in ("messages", "input"):
        if isinstance(turns := body.get(name), list):
            body[name] = [turn for turn in turns if not (_instructs(turn) and not turn["content"])]


def _list_places(body: dict[str, Any]) -> Iterator[tuple[dict[str, Any], str]]:
    """Yield (object, field) for each field of the body that holds instructions."""
    yield from ((body, name) for name in ("system", "instructions") if name in body)
    for name in ("messages", "input"):
        if isinstance(turns := body.get(name), list):
            yield from ((turn, "content") for turn in turns if _instructs(turn))


def _instructs(turn: Any) -> bool:
    if not isinstance(turn, dict) or turn.get("role") not in _ROLES:
        return False
    return isinstance(turn.get("content"), str | list)


def _steady_part(part: Any) -> Any:
    """A part of instructions without what changes; None where no text is left."""
    if not isinstance(part, dict) or not isinstance(part.get("text"), str):
        return part
    text = steady(part["text"])
    if text == part["text"]:
        return part
    return {**part, "text": text} if text.strip() else None
