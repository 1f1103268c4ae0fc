"""What an agent does with a model that chooses by itself whether to call a tool: `tool_caller`'s
pair, or that pair with a search."""

import json
from typing import Any

from tests.support.openai_suite import Check, Clients
from tests.support.tool_caller import GREETING, HELLO, NO_TOOLS, SUMS, TOOL_NAME

NUMBER = {"type": "integer"}
SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {"a": NUMBER, "b": NUMBER},
    "required": ["a", "b"],
}
FUNCTION: dict[str, Any] = {"name": TOOL_NAME, "description": "Adds.", "parameters": SCHEMA}
TOOL: Any = {"type": "function", "function": FUNCTION}
SUM = {"a": 3, "b": 4}


def _ask(a: int = 3, b: int = 4) -> list[Any]:
    return [{"role": "user", "content": f"{a} + {b}?"}]


def check_turns(clients: Clients, model: str) -> None:
    """Question, call, result, answer: what an agent's loop sends and gets."""
    for a, b in SUMS:
        messages = _ask(a, b)
        (choice,) = clients.chat(model, messages, tools=[TOOL], tool_choice="auto").choices
        assert choice.finish_reason == "tool_calls"
        assert not choice.message.content
        (call,) = choice.message.tool_calls
        assert (call.type, call.function.name) == ("function", TOOL_NAME)
        assert json.loads(call.function.arguments) == {"a": a, "b": b}
        result = {"role": "tool", "tool_call_id": call.id, "content": str(a + b)}
        (last,) = clients.chat(model, [*messages, choice.message, result], tools=[TOOL]).choices
        assert (last.message.content, last.finish_reason) == (f"It is {a + b}.", "stop")


def check_choice_is_the_models(clients: Clients, model: str) -> None:
    """It answers where there is nothing to add, and where it may not or can not call."""
    cases: tuple[tuple[Any, dict[str, Any], str], ...] = (
        ([{"role": "user", "content": HELLO}], {"tools": [TOOL]}, GREETING),
        (_ask(), {}, NO_TOOLS),
        (_ask(), {"tools": [TOOL], "tool_choice": "none"}, NO_TOOLS),
    )
    for messages, tools, said in cases:
        (choice,) = clients.chat(model, messages, **tools).choices
        assert (choice.message.content, choice.finish_reason) == (said, "stop")
        assert not choice.message.tool_calls


def check_streamed_call(clients: Clients, model: str) -> None:
    """The call's name and id once, its arguments in pieces, none of it as content."""
    chunks = clients.chat(model, _ask(), tools=[TOOL], stream=True)
    choices = [choice for chunk in chunks for choice in chunk.choices]
    calls = [call for choice in choices for call in choice.delta.tool_calls or ()]
    assert {call.index for call in calls} == {0}
    assert [call.function.name for call in calls if call.function.name] == [TOOL_NAME]
    assert len([call.id for call in calls if call.id]) == 1
    assert json.loads("".join(call.function.arguments or "" for call in calls)) == SUM
    assert [c.finish_reason for c in choices if c.finish_reason] == ["tool_calls"]
    assert not "".join(choice.delta.content or "" for choice in choices).strip()


def check_responses(clients: Clients, model: str) -> None:
    """By the Responses API: a call, whole and streamed, then its result."""
    tool: Any = {"type": "function", **FUNCTION, "strict": False}
    responses = clients.openai.responses
    asked: dict[str, Any] = {"model": model, "tools": [tool], "tool_choice": "auto"}
    call = responses.create(input="3 + 4?", **asked).output[-1]
    assert call.type == "function_call"
    assert (call.name, json.loads(call.arguments)) == (TOOL_NAME, SUM)
    with responses.stream(input="3 + 4?", **asked) as events:
        done = [e for e in events if e.type == "response.function_call_arguments.done"]
    assert [json.loads(event.arguments) for event in done] == [SUM]
    result = {"type": "function_call_output", "call_id": call.call_id, "output": "7"}
    history = [*_ask(), call.model_dump(), result]
    assert responses.create(input=history, **asked).output_text == "It is 7."


def check_messages(clients: Clients, model: str) -> None:
    """By Anthropic's: a call, whole and streamed, then its result."""
    messages = clients.anthropic.messages
    asked: dict[str, Any] = {
        "model": model,
        "max_tokens": 100,
        "tools": [{"name": TOOL_NAME, "input_schema": SCHEMA}],
        "tool_choice": {"type": "auto"},
    }
    answer = messages.create(messages=_ask(), **asked)
    assert answer.stop_reason == "tool_use"
    call = answer.content[-1]
    assert (call.type, call.name, call.input) == ("tool_use", TOOL_NAME, SUM)
    with messages.stream(messages=_ask(), **asked) as stream:
        assert stream.get_final_message().content[-1].input == SUM
    said = {"role": "assistant", "content": [call.model_dump()]}
    result = {"type": "tool_result", "tool_use_id": call.id, "content": "7"}
    history = [*_ask(), said, {"role": "user", "content": [result]}]
    answer = messages.create(messages=history, **asked)
    last = answer.content[-1]
    assert (answer.stop_reason, last.type, last.text) == ("end_turn", "text", "It is 7.")


CHECKS: tuple[Check, ...] = (
    check_turns,
    check_choice_is_the_models,
    check_streamed_call,
    check_responses,
    check_messages,
)
