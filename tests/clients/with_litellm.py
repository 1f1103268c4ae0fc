"""LiteLLM, as aider, dspy and others use it."""

import json
from typing import Any

import litellm
import pytest

from tests.clients.asked import MAX_TOKENS, QUESTION, Sum

TOOL = {"type": "function", "function": {"name": "add", "parameters": Sum.model_json_schema()}}


def _ask(url: str, model: str, *messages: Any, **options: Any) -> Any:
    options |= {"api_base": f"{url}/v1", "api_key": "none", "num_retries": 0}
    said = [{"role": "user", "content": QUESTION}, *messages]
    options |= {"max_tokens": MAX_TOKENS, "messages": said}
    return litellm.completion(model=f"openai/{model}", **options)


def check_chat(url: str, model: str) -> None:
    assert _ask(url, model).choices[0].message.content


def check_stream(url: str, model: str) -> None:
    pieces = [chunk.choices[0].delta.content or "" for chunk in _ask(url, model, stream=True)]
    assert "".join(pieces)


def check_tool(url: str, model: str) -> None:
    answer = _ask(url, model, tools=[TOOL], tool_choice="required")
    assert set(json.loads(answer.choices[0].message.tool_calls[0].function.arguments)) == {"a", "b"}


def check_schema(url: str, model: str) -> None:
    answer = _ask(url, model, response_format=Sum)
    Sum.model_validate_json(answer.choices[0].message.content)


def check_history(url: str, model: str) -> None:
    """LiteLLM's own message object is sent back unchanged."""
    first = _ask(url, model, tools=[TOOL], tool_choice="required").choices[0].message
    result = {"role": "tool", "tool_call_id": first.tool_calls[0].id, "content": "7"}
    assert _ask(url, model, first, result, tools=[TOOL]).choices[0].finish_reason


def check_overflow(url: str, model: str) -> None:
    long = {"role": "user", "content": "1 + 1 = 2. " * 2000}
    with pytest.raises(litellm.ContextWindowExceededError):
        _ask(url, model, long)
