"""What agents ask of a daemon, by the unmodified `openai` and `anthropic` packages.

`CHECKS` hold for the pair bundled, `SEARCH_CHECKS` for the pair with a search. It only knows sums,
so guided decoding makes its tool calls and its JSON.
"""

import json
from typing import Any

import anthropic
import pytest

from tests.support.openai_suite import QUESTION, Check, Clients

NUMBER = {"type": "integer", "minimum": 0, "maximum": 99}  # else the pair writes digits without end
SCHEMA: dict[str, Any] = {"type": "object", "properties": {"a": NUMBER, "b": NUMBER}}
SCHEMA |= {"required": ["a", "b"], "additionalProperties": False}
TOOL: dict[str, Any] = {"type": "function", "function": {"name": "add", "parameters": SCHEMA}}


def _is_sum(arguments: str) -> bool:
    return set(json.loads(arguments)) == {"a", "b"}


# ---------------------------------------------------------------- chat completions


def check_tools(clients: Clients, model: str) -> None:
    """Required, named and streamed calls; none with tool_choice none."""
    for choice in ("required", {"type": "function", "function": {"name": "add"}}):
        answer = clients.chat(model, tools=[TOOL], tool_choice=choice, max_tokens=150)
        call = answer.choices[0].message.tool_calls[0]
        assert call.function.name == "add"
        assert _is_sum(call.function.arguments)
    one = {"parallel_tool_calls": False}  # else the pair may make several
    asked = {"tools": [TOOL], "tool_choice": "required", "max_tokens": 150, **one}
    choices = [c for chunk in clients.chat(model, **asked, stream=True) for c in chunk.choices]
    calls = [call for choice in choices for call in choice.delta.tool_calls or ()]
    assert _is_sum("".join(call.function.arguments or "" for call in calls))
    for choice in ("auto", "none"):
        assert clients.say(model, tools=[TOOL], tool_choice=choice, max_tokens=8)


def check_schemas(clients: Clients, model: str) -> None:
    shape = {"name": "sum", "schema": SCHEMA, "strict": True}
    guided = {"response_format": {"type": "json_schema", "json_schema": shape}}
    assert _is_sum(clients.say(model, max_tokens=80, **guided))
    ended = 0
    for seed in range(16):  # the pair was not trained on JSON, and seldom closes its strings
        asked: dict[str, Any] = {"seed": seed, "response_format": {"type": "json_object"}}
        (choice,) = clients.chat(model, max_tokens=80, **asked).choices
        if choice.finish_reason == "stop":
            ended += isinstance(json.loads(choice.message.content), dict)
        else:
            assert choice.message.content.lstrip().startswith("{")
    assert ended


def check_history(clients: Clients, model: str) -> None:
    """Messages as frameworks send them back: tool results, null content, names, unknown fields."""
    function = {"name": "add", "arguments": '{"a":3,"b":4}'}
    call = {"id": "call-1", "type": "function", "function": function}
    notes = {"provider_specific_fields": {"refusal": None}, "reasoning_content": "I add."}
    part = {"type": "text", "text": "Go on.", "cache_control": {"type": "ephemeral"}}
    messages = [
        {"role": "developer", "content": "Be brief."},
        {"role": "user", "name": "Bo", "content": "What is 3 + 4?"},
        {"role": "assistant", "content": None, "tool_calls": [call], **notes},
        {"role": "tool", "tool_call_id": "call-1", "content": "7"},
        {"role": "assistant", "content": "7", "reasoning": "It said 7."},
        {"role": "user", "content": [part]},
    ]
    answer = clients.chat(model, messages, tools=[TOOL], max_tokens=5)
    assert answer.choices[0].finish_reason


def check_habits(clients: Clients, model: str) -> None:
    """Fields that clients send by habit, neutral or unknown, are no errors."""
    habits: dict[str, Any] = {"store": True, "metadata": {"a": "b"}, "user": "me"}
    habits |= {"parallel_tool_calls": True, "service_tier": "auto", "logit_bias": {"5": 1}}
    habits |= {"frequency_penalty": 0.5, "presence_penalty": 0.1}
    habits["extra_body"] = {"min_p": 0.0, "repetition_penalty": 1.0, "num_ctx": 4096}
    assert clients.chat(model, max_tokens=5, **habits).usage.completion_tokens == 5


def check_logprobs(clients: Clients, model: str) -> None:
    answer = clients.chat(model, max_tokens=5, logprobs=True, top_logprobs=2)
    content = answer.choices[0].logprobs.content
    assert len(content) == 5
    assert all(len(token.top_logprobs) >= 2 and token.logprob <= 0 for token in content)


# ---------------------------------------------------------------- the other protocols


def check_responses(clients: Clients, model: str) -> None:
    """Whole, streamed, and with a tool."""
    responses, asked = clients.openai.responses, {"model": model, "input": "1 + 1?"}
    answer = responses.create(**asked, max_output_tokens=10)
    assert answer.output_text
    assert answer.usage.output_tokens == 10
    with responses.stream(**asked, max_output_tokens=10) as events:
        kinds = [event.type for event in events]
    assert kinds[0] == "response.created"
    assert "response.output_text.delta" in kinds
    tool = {"type": "function", "name": "add", "parameters": SCHEMA, "strict": True}
    forced = {"tools": [tool], "tool_choice": "required", "max_output_tokens": 150}
    assert _is_sum(responses.create(**asked, **forced).output[-1].arguments)


def check_completions(clients: Clients, model: str) -> None:
    answer = clients.openai.completions.create(model=model, prompt="1 + 1 =", max_tokens=4)
    assert answer.usage.completion_tokens == 4


def check_messages(clients: Clients, model: str) -> None:
    """Anthropic's: whole, streamed, counted, with a tool and its result."""
    messages = clients.anthropic.messages
    asked: dict[str, Any] = {"model": model, "messages": QUESTION}
    answer = messages.create(**asked, max_tokens=10, system="Be brief.", metadata={"user_id": "me"})
    assert answer.content[0].text
    assert answer.stop_reason == "max_tokens"
    with messages.stream(**asked, max_tokens=10) as stream:
        assert "".join(stream.text_stream)
        assert stream.get_final_message().usage.output_tokens == 10
    assert messages.count_tokens(**asked).input_tokens > 5
    tools = [{"name": "add", "input_schema": SCHEMA}]
    forced = {"tools": tools, "tool_choice": {"type": "tool", "name": "add"}}
    answer = messages.create(**asked, max_tokens=150, **forced)
    call = answer.content[-1]
    assert (set(call.input), answer.stop_reason) == ({"a", "b"}, "tool_use")
    said = [block.model_dump() for block in answer.content]
    result = {"type": "tool_result", "tool_use_id": call.id, "content": "7"}
    history = [{"role": "assistant", "content": said}, {"role": "user", "content": [result]}]
    messages.create(model=model, messages=[*QUESTION, *history], tools=tools, max_tokens=5)
    with pytest.raises(anthropic.NotFoundError, match="bundled"):
        messages.create(model="claude", messages=QUESTION, max_tokens=5)


# ---------------------------------------------------------------- searches


def check_search_choices(clients: Clients, model: str) -> None:
    """n, stop, and the log-probabilities of each choice's tokens; the same streamed."""
    asked: dict[str, Any] = {"seed": 3, "max_tokens": 60, "logprobs": True, "top_logprobs": 1}
    whole = clients.chat(model, **asked, n=3)
    assert [choice.index for choice in whole.choices] == [0, 1, 2]
    for choice in whole.choices:
        tokens = choice.logprobs.content
        said = "".join(token.token for token in tokens[:-1])
        assert choice.message.content.startswith(said)
        assert all(token.logprob <= 0 for token in tokens)
    texts = ["", "", ""]
    for chunk in clients.chat(model, **asked, n=3, stream=True):
        for choice in chunk.choices:
            texts[choice.index] += choice.delta.content or ""
    assert texts == [choice.message.content for choice in whole.choices]
    first = texts[0]
    stop = first[len(first) // 2 :][:3]
    (choice,) = clients.chat(model, **asked, stop=[stop]).choices
    assert choice.message.content == first[: first.find(stop)]
    assert choice.finish_reason == "stop"


def check_search_streams(clients: Clients, model: str) -> None:
    """What the search does comes as reasoning in every protocol, and comes back in no prompt."""
    asked = {"model": model, "input": "1 + 1?", "max_output_tokens": 60}
    with clients.openai.responses.stream(**asked) as events:
        kinds = [event.type for event in events]
    assert kinds.index("response.reasoning_text.delta") < kinds.index("response.output_text.delta")
    streamed = {"stream": True, "stream_options": {"include_usage": True}}
    *chunks, last = clients.chat(model, **streamed, reasoning_effort="low")
    assert last.usage.completion_tokens > 0
    about = chunks[-1].model_extra["flashedge"]
    assert about["usage"]["tree_tokens"] >= last.usage.completion_tokens
    messages = clients.anthropic.messages
    with messages.stream(model=model, max_tokens=60, messages=QUESTION) as stream:
        thinking, text = (block.model_dump() for block in stream.get_final_message().content)
    assert thinking["type"] == "thinking"
    counts = []
    for content in ([thinking, text], [text]):
        said = [{"role": "assistant", "content": content}, {"role": "user", "content": "Sure?"}]
        counts.append(messages.count_tokens(model=model, messages=[*QUESTION, *said]).input_tokens)
    assert counts[0] == counts[1]


def check_efforts(clients: Clients, model: str) -> None:
    """The effort chooses the number of paths where the name does not."""
    strategy = model.rpartition("-")[0]
    asked = {"model": strategy, "input": "1 + 1?", "reasoning": {"effort": "minimal"}}
    answers = [clients.openai.responses.create(**asked, max_output_tokens=30)]
    for effort in ("minimal", "low"):
        answers.append(clients.chat(strategy, reasoning_effort=effort, max_tokens=30))
    assert [answer.model_extra["flashedge"]["n"] for answer in answers] == [2, 2, 4]


_SHARED: tuple[Check, ...] = (check_tools, check_schemas, check_history)
_SHARED += (check_responses, check_messages)
CHECKS = (*_SHARED, check_habits, check_logprobs, check_completions)
SEARCH_CHECKS = (*_SHARED, check_search_choices, check_search_streams, check_efforts)
