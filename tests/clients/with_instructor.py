"""instructor, which asks for objects only: by tools and by JSON schemas."""

from typing import Any

import instructor
from openai import OpenAI

from tests.clients.asked import MAX_TOKENS, QUESTION, Sum

TOOLS = instructor.Mode.TOOLS


def _ask(url: str, model: str, mode: instructor.Mode, shape: Any = Sum, **options: Any) -> Any:
    client = OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0)
    messages = [{"role": "user", "content": QUESTION}]
    options |= {"messages": messages, "max_tokens": MAX_TOKENS, "max_retries": 0}
    asking = instructor.from_openai(client, mode=mode)
    return asking.create(model=model, response_model=shape, **options)


def check_tool(url: str, model: str) -> None:
    assert isinstance(_ask(url, model, TOOLS), Sum)


def check_schema(url: str, model: str) -> None:
    assert isinstance(_ask(url, model, instructor.Mode.JSON_SCHEMA), Sum)


def check_stream(url: str, model: str) -> None:
    *_, last = _ask(url, model, TOOLS, instructor.Partial[Sum], stream=True)
    assert last.a is not None
