"""smolagents' model for OpenAI's protocol, which always sends stop strings."""

import json
from typing import Any

from smolagents import OpenAIServerModel, tool

from tests.clients.asked import MAX_TOKENS, QUESTION, Sum, add


def _model(url: str, model: str) -> OpenAIServerModel:
    # smolagents sets no temperature: a random draw of the pair was empty now and then, a flake.
    options = {"max_tokens": MAX_TOKENS, "temperature": 0.0}
    return OpenAIServerModel(model_id=model, api_base=f"{url}/v1", api_key="none", **options)


SAY: list[Any] = [{"role": "user", "content": [{"type": "text", "text": QUESTION}]}]


def check_chat(url: str, model: str) -> None:
    assert _model(url, model).generate(SAY, stop_sequences=["<end_code>", "Observation:"]).content


def check_stream(url: str, model: str) -> None:
    deltas = _model(url, model).generate_stream(SAY, stop_sequences=["<end_code>"])
    assert "".join(delta.content or "" for delta in deltas)


def check_tool(url: str, model: str) -> None:
    """The name is right; the numbers have no bounds, so the bundled pair may be cut short."""
    answer = _model(url, model).generate(SAY, tools_to_call_from=[tool(add)])
    assert answer.tool_calls[0].function.name == "add"


def check_schema(url: str, model: str) -> None:
    shape = {"name": "sum", "schema": Sum.model_json_schema(), "strict": True}
    asked = {"type": "json_schema", "json_schema": shape}
    answer = _model(url, model).generate(SAY, response_format=asked)
    assert set(json.loads(answer.content)) == {"a", "b"}


def check_history(url: str, model: str) -> None:
    first = _model(url, model).generate(SAY)
    again = [*SAY, first, {"role": "user", "content": [{"type": "text", "text": "Sure?"}]}]
    assert _model(url, model).generate(again).content
