"""instructor, which asks for objects only: by tools and by JSON schemas."""

from typing import Any

import instructor
from openai import OpenAI

from tests.clients.asked import MAX_TOKENS, QUESTION, Sum


def _ask(url: str, model: str, mode: instructor.Mode, **options: Any) -> Any:
    client = instructor.from_openai(
        OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0), mode=mode
    )
    return client.create(
        model=model,
        response_model=options.pop("response_model", Sum),
        messages=[{"role": "user", "content": QUESTION}],
        max_tokens=MAX_TOKENS,
        max_retries=0,
        **options,
    )


def check_tool(url: str, model: str) -> None:
    assert isinstance(_ask(url, model, instructor.Mode.TOOLS), Sum)


def check_schema(url: str, model: str) -> None:
    assert isinstance(_ask(url, model, instructor.Mode.JSON_SCHEMA), Sum)


def check_stream(url: str, model: str) -> None:
    partial = instructor.Partial[Sum]
    found = list(_ask(url, model, instructor.Mode.TOOLS, response_model=partial, stream=True))
    assert found[-1].a is not None
