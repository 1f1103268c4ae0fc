"""What an agent does with a model that chooses by itself whether to call a tool.

Each check is a function of a base URL and of a model's name: `tool_caller`'s pair, or that pair
with a search. The packages are the unmodified `openai` and `anthropic`.
"""

from __future__ import annotations

import json
from typing import Any

from tests.support.agent_suite import connect_anthropic
from tests.support.openai_suite import Check, connect
from tests.support.tool_caller import GREETING, HELLO, NO_TOOLS, SUMS, TOOL_NAME

NUMBER = {"type": "integer"}
SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {"a": NUMBER, "b": NUMBER},
    "required": ["a", "b"],
}
FUNCTION: dict[str, Any] = {"name": TOOL_NAME, "description": "Adds.", "parameters": SCHEMA}
TOOL: Any = {"type": "function", "function": FUNCTION}


def _ask(a: int, b: int) -> list[Any]:
    return [{"role": "user", "content": f"{a} + {b}?"}]


def check_turns(url: str, model: str) -> None:
    with connect(url) as client:
        for a, b in SUMS:
            messages = _ask(a, b)
            first = client.chat.completions.create(
                model=model, messages=messages, tools=[TOOL], tool_choice="auto"
            )
            (choice,) = first.choices
            assert choice.finish_reason == "tool_calls"
            assert not choice.message.content
            (call,) = choice.message.tool_calls or ()
            assert call.type == "function"
            assert call.function.name == TOOL_NAME
            assert json.loads(call.function.arguments) == {"a": a, "b": b}
            result = {"role": "tool", "tool_call_id": call.id, "content": str(a + b)}
            last = client.chat.completions.create(
                model=model, messages=[*messages, choice.message, result], tools=[TOOL]
            )
            assert last.choices[0].message.content == f"It is {a + b}."
            assert last.choices[0].finish_reason == "stop"


def check_choice_is_the_models(url: str, model: str) -> None:
    """It answers where there is nothing to add, and where it may not or can not call."""
    cases: tuple[tuple[Any, dict[str, Any], str], ...] = (
        ([{"role": "user", "content": HELLO}], {"tools": [TOOL]}, GREETING),
        (_ask(3, 4), {}, NO_TOOLS),
        (_ask(3, 4), {"tools": [TOOL], "tool_choice": "none"}, NO_TOOLS),
    )
    with connect(url) as client:
        for messages, tools, said in cases:
            answer = client.chat.completions.create(model=model, messages=messages, **tools)
            assert answer.choices[0].message.content == said
            assert not answer.choices[0].message.tool_calls
            assert answer.choices[0].finish_reason == "stop"


def check_streamed_call(url: str, model: str) -> None:
    names, ids, arguments, text = [], [], "", ""
    finish = None
    with connect(url) as client:
        for chunk in client.chat.completions.create(
            model=model, messages=_ask(3, 4), tools=[TOOL], stream=True
        ):
            for choice in chunk.choices:
                finish = choice.finish_reason or finish
                text += choice.delta.content or ""
                for call in choice.delta.tool_calls or ():
                    assert call.index == 0
                    assert call.function
                    names += [call.function.name] if call.function.name else []
                    ids += [call.id] if call.id else []
                    arguments += call.function.arguments or ""
    assert (names, len(ids), finish) == ([TOOL_NAME], 1, "tool_calls")
    assert json.loads(arguments) == {"a": 3, "b": 4}
    assert not text.strip()


def check_responses(url: str, model: str) -> None:
    tool: Any = {"type": "function", **FUNCTION, "strict": False}
    with connect(url) as client:
        asked: dict[str, Any] = {"model": model, "tools": [tool], "tool_choice": "auto"}
        answer = client.responses.create(input="3 + 4?", **asked)
        call = answer.output[-1]
        assert call.type == "function_call"
        assert (call.name, json.loads(call.arguments)) == (TOOL_NAME, {"a": 3, "b": 4})
        with client.responses.stream(input="3 + 4?", **asked) as events:
            done = [e for e in events if e.type == "response.function_call_arguments.done"]
        assert [json.loads(event.arguments) for event in done] == [{"a": 3, "b": 4}]
        result = {"type": "function_call_output", "call_id": call.call_id, "output": "7"}
        history: Any = [{"role": "user", "content": "3 + 4?"}, call.model_dump(), result]
        assert client.responses.create(input=history, **asked).output_text == "It is 7."


def check_messages(url: str, model: str) -> None:
    asked: dict[str, Any] = {
        "model": model,
        "max_tokens": 100,
        "tools": [{"name": TOOL_NAME, "input_schema": SCHEMA}],
        "tool_choice": {"type": "auto"},
    }
    with connect_anthropic(url) as client:
        answer = client.messages.create(messages=_ask(3, 4), **asked)
        assert answer.stop_reason == "tool_use"
        call: Any = answer.content[-1]
        assert (call.type, call.name, call.input) == ("tool_use", TOOL_NAME, {"a": 3, "b": 4})
        with client.messages.stream(messages=_ask(3, 4), **asked) as stream:
            last: Any = stream.get_final_message().content[-1]
        assert last.input == {"a": 3, "b": 4}
        result = {"type": "tool_result", "tool_use_id": call.id, "content": "7"}
        history: list[Any] = [
            *_ask(3, 4),
            {"role": "assistant", "content": [call.model_dump()]},
            {"role": "user", "content": [result]},
        ]
        answer = client.messages.create(messages=history, **asked)
        assert answer.stop_reason == "end_turn"
        assert answer.content[-1].type == "text"
        assert answer.content[-1].text == "It is 7."


CHECKS: tuple[Check, ...] = (
    *(check_turns, check_choice_is_the_models, check_streamed_call),
    *(check_responses, check_messages),
)
