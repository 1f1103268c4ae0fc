"""What agents ask of a daemon, by the unmodified `openai` and `anthropic` packages.

Each check is a function of a base URL that serves the pair bundled, and of a model's name: the
pair, or the pair with a search, for which `SEARCH_CHECKS` hold. That pair only knows sums, so
guided decoding makes its tool calls and its JSON.
"""

from __future__ import annotations

import json
from functools import partial
from typing import Any

import anthropic
import pytest
from anthropic import Anthropic

from tests.support.openai_suite import QUESTION, Check, bind, connect

NUMBER = {"type": "integer", "minimum": 0, "maximum": 99}  # else the pair writes digits for ever
SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {"a": NUMBER, "b": NUMBER},
    "required": ["a", "b"],
    "additionalProperties": False,
}
TOOL: dict[str, Any] = {"type": "function", "function": {"name": "add", "parameters": SCHEMA}}
CALLED = {"name": "add", "arguments": '{"a":3,"b":4}'}


def connect_anthropic(url: str) -> Any:
    return Anthropic(base_url=url, api_key="none", max_retries=0, timeout=120)


def _is_sum(arguments: str) -> bool:
    return set(json.loads(arguments)) == {"a", "b"}


# ---------------------------------------------------------------- chat completions


def check_tools(url: str, model: str) -> None:
    with connect(url) as client:
        ask = partial(bind(client, model), tools=[TOOL])
        for choice in ("required", {"type": "function", "function": {"name": "add"}}):
            answer = ask(tool_choice=choice, max_tokens=150)
            call = answer.choices[0].message.tool_calls[0]
            assert call.function.name == "add"
            assert _is_sum(call.function.arguments)
        one = {"tool_choice": "required", "parallel_tool_calls": False}  # else it may make several
        arguments = ""
        for chunk in ask(**one, max_tokens=150, stream=True):
            for call in chunk.choices[0].delta.tool_calls or () if chunk.choices else ():
                arguments += call.function.arguments or ""
        assert _is_sum(arguments)
        for choice in ("auto", "none"):
            assert ask(tool_choice=choice, max_tokens=8).choices[0].message.content


def check_schemas(url: str, model: str) -> None:
    shape = {"name": "sum", "schema": SCHEMA, "strict": True}
    with connect(url) as client:
        ask = partial(bind(client, model), max_tokens=80)
        answer = ask(response_format={"type": "json_schema", "json_schema": shape})
        assert _is_sum(answer.choices[0].message.content)
        ended = 0
        for seed in range(16):  # the pair was not trained on JSON, and seldom closes its strings
            choice = ask(seed=seed, response_format={"type": "json_object"}).choices[0]
            if choice.finish_reason == "stop":
                ended += isinstance(json.loads(choice.message.content), dict)
            else:
                assert choice.message.content.lstrip().startswith("{")
        assert ended


def check_history(url: str, model: str) -> None:
    """Messages as frameworks send them back: tool results, null content, names, unknown fields."""
    calls = [{"id": "call-1", "type": "function", "function": CALLED}]
    odd = {"provider_specific_fields": {"refusal": None}, "reasoning_content": "I add."}
    part = {"type": "text", "text": "Go on.", "cache_control": {"type": "ephemeral"}}
    messages = [
        {"role": "developer", "content": "Be brief."},
        {"role": "user", "name": "Bo", "content": "What is 3 + 4?"},
        {"role": "assistant", "content": None, "tool_calls": calls, **odd},
        {"role": "tool", "tool_call_id": "call-1", "content": "7"},
        {"role": "assistant", "content": "7", "reasoning": "It said 7."},
        {"role": "user", "content": [part]},
    ]
    with connect(url) as client:
        answer = bind(client, model)(messages=messages, tools=[TOOL], max_tokens=5)
    assert answer.choices[0].finish_reason


def check_habits(url: str, model: str) -> None:
    """Fields that clients send by habit, neutral or unknown, are no errors."""
    habits: dict[str, Any] = {"store": True, "metadata": {"a": "b"}, "user": "me"}
    habits |= {"parallel_tool_calls": True, "service_tier": "auto", "logit_bias": {"5": 1}}
    habits |= {"frequency_penalty": 0.5, "presence_penalty": 0.1}
    habits["extra_body"] = {"min_p": 0.0, "repetition_penalty": 1.0, "num_ctx": 4096}
    with connect(url) as client:
        answer = bind(client, model)(max_tokens=5, **habits)
    assert answer.usage.completion_tokens == 5


def check_logprobs(url: str, model: str) -> None:
    with connect(url) as client:
        answer = bind(client, model)(max_tokens=5, logprobs=True, top_logprobs=2)
    content = answer.choices[0].logprobs.content
    assert len(content) == 5
    assert all(len(token.top_logprobs) >= 2 for token in content)


# ---------------------------------------------------------------- the other protocols


def check_responses(url: str, model: str) -> None:
    tool = {"type": "function", "name": "add", "parameters": SCHEMA, "strict": True}
    with connect(url) as client:
        answer = client.responses.create(model=model, input="1 + 1?", max_output_tokens=10)
        assert answer.output_text
        assert answer.usage.output_tokens == 10
        with client.responses.stream(model=model, input="1 + 1?", max_output_tokens=10) as events:
            kinds = [event.type for event in events]
        assert kinds[0] == "response.created"
        assert "response.output_text.delta" in kinds
        answer = client.responses.create(
            model=model, input="1 + 1?", tools=[tool], tool_choice="required", max_output_tokens=150
        )
        assert _is_sum(answer.output[-1].arguments)


def check_completions(url: str, model: str) -> None:
    with connect(url) as client:
        answer = client.completions.create(model=model, prompt="1 + 1 =", max_tokens=4)
    assert answer.usage.completion_tokens == 4


def check_messages(url: str, model: str) -> None:
    tool = {"name": "add", "input_schema": SCHEMA}
    with connect_anthropic(url) as client:
        asked: dict[str, Any] = {"model": model, "messages": QUESTION}
        answer = client.messages.create(
            **asked, max_tokens=10, system="Be brief.", metadata={"user_id": "me"}
        )
        assert answer.content[0].text
        assert answer.stop_reason == "max_tokens"
        with client.messages.stream(**asked, max_tokens=10) as stream:
            assert "".join(stream.text_stream)
            assert stream.get_final_message().usage.output_tokens == 10
        assert client.messages.count_tokens(**asked).input_tokens > 5
        answer = client.messages.create(
            **asked, max_tokens=150, tools=[tool], tool_choice={"type": "tool", "name": "add"}
        )
        call = answer.content[-1]
        assert set(call.input) == {"a", "b"}
        assert answer.stop_reason == "tool_use"
        result = {"type": "tool_result", "tool_use_id": call.id, "content": "7"}
        history = [
            *QUESTION,
            {"role": "assistant", "content": [block.model_dump() for block in answer.content]},
            {"role": "user", "content": [result]},
        ]
        client.messages.create(model=model, messages=history, tools=[tool], max_tokens=5)
        with pytest.raises(anthropic.NotFoundError, match="bundled"):
            client.messages.create(model="claude", messages=QUESTION, max_tokens=5)


def check_search_choices(url: str, model: str) -> None:
    """n, stop, and the log-probabilities of each choice's tokens; the same streamed."""
    options = {"seed": 3, "max_tokens": 60, "logprobs": True, "top_logprobs": 1}
    with connect(url) as client:
        ask = partial(bind(client, model), **options)
        whole = ask(n=3)
        assert [choice.index for choice in whole.choices] == [0, 1, 2]
        for choice in whole.choices:
            tokens = choice.logprobs.content
            said = "".join(token.token for token in tokens[:-1])
            assert choice.message.content.startswith(said)
            assert all(token.logprob <= 0 for token in tokens)
        texts = ["", "", ""]
        for choice in (choice for chunk in ask(n=3, stream=True) for choice in chunk.choices):
            texts[choice.index] += choice.delta.content or ""
        assert texts == [choice.message.content for choice in whole.choices]
        first = texts[0]
        stop = first[len(first) // 2 :][:3]
        answer = ask(stop=[stop])
        assert answer.choices[0].message.content == first[: first.find(stop)]
        assert answer.choices[0].finish_reason == "stop"


def check_search_streams(url: str, model: str) -> None:
    """What the search does comes as reasoning in every protocol, and comes back in no prompt."""
    with connect(url) as client:
        with client.responses.stream(model=model, input="1 + 1?", max_output_tokens=60) as events:
            kinds = [event.type for event in events]
        thought, said = "response.reasoning_text.delta", "response.output_text.delta"
        assert kinds.index(thought) < kinds.index(said)
        options = {"stream_options": {"include_usage": True}, "reasoning_effort": "low"}
        *chunks, usage = bind(client, model)(stream=True, **options)
        assert usage.usage.completion_tokens > 0
        about = chunks[-1].model_extra["flashedge"]
        assert about["usage"]["tree_tokens"] >= usage.usage.completion_tokens
    with connect_anthropic(url) as client:
        with client.messages.stream(model=model, max_tokens=60, messages=QUESTION) as stream:
            thinking, text = stream.get_final_message().content
        assert thinking.type == "thinking"
        history = [
            *QUESTION,
            {"role": "assistant", "content": [thinking.model_dump(), text.model_dump()]},
            {"role": "user", "content": "Sure?"},
        ]
        counted = client.messages.count_tokens(model=model, messages=history).input_tokens
        del history[1]["content"][0]
        assert counted == client.messages.count_tokens(model=model, messages=history).input_tokens


def check_efforts(url: str, model: str) -> None:
    """The effort chooses the number of paths where the name does not."""
    strategy = model.rpartition("-")[0]
    with connect(url) as client:
        for effort, n in (("minimal", 2), ("low", 4)):
            answer = bind(client, strategy)(reasoning_effort=effort, max_tokens=30)
            assert answer.model_extra["flashedge"]["n"] == n
        answer = client.responses.create(
            model=strategy, input="1 + 1?", reasoning={"effort": "minimal"}, max_output_tokens=30
        )
        assert answer.model_extra["flashedge"]["n"] == 2


SHARED = (check_tools, check_schemas, check_history, check_responses, check_messages)
CHECKS: tuple[Check, ...] = (*SHARED, check_habits, check_logprobs, check_completions)
SEARCH_CHECKS: tuple[Check, ...] = (
    *(*SHARED, check_search_choices, check_search_streams, check_efforts),
)
