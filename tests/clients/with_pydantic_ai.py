"""pydantic-ai, by chat completions and by Anthropic's messages."""

import asyncio
from typing import Any

from pydantic_ai import Agent, NativeOutput
from pydantic_ai.models.anthropic import AnthropicModel
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.providers.anthropic import AnthropicProvider
from pydantic_ai.providers.openai import OpenAIProvider
from pydantic_ai.settings import ModelSettings

from tests.clients.asked import MAX_TOKENS, QUESTION, Sum

LIMITS: Any = {"model_settings": ModelSettings(max_tokens=MAX_TOKENS), "retries": 0}


def _openai(url: str, model: str, **options: Any) -> Agent[Any, Any]:
    provider = OpenAIProvider(base_url=f"{url}/v1", api_key="none")
    return Agent(OpenAIChatModel(model, provider=provider), **LIMITS, **options)


def _anthropic(url: str, model: str, **options: Any) -> Agent[Any, Any]:
    provider = AnthropicProvider(base_url=url, api_key="none")
    return Agent(AnthropicModel(model, provider=provider), **LIMITS, **options)


def check_chat(url: str, model: str) -> None:
    assert _openai(url, model).run_sync(QUESTION).output


def check_stream(url: str, model: str) -> None:
    async def run() -> str:
        async with _openai(url, model).run_stream(QUESTION) as answer:
            return "".join([piece async for piece in answer.stream_text(delta=True)])

    assert asyncio.run(run())


def check_tool(url: str, model: str) -> None:
    """Its usual way to an object is a call of a tool."""
    assert isinstance(_openai(url, model, output_type=Sum).run_sync(QUESTION).output, Sum)


def check_schema(url: str, model: str) -> None:
    agent = _openai(url, model, output_type=NativeOutput(Sum))
    assert isinstance(agent.run_sync(QUESTION).output, Sum)


def check_history(url: str, model: str) -> None:
    agent = _openai(url, model)
    first = agent.run_sync(QUESTION)
    assert agent.run_sync("And 2 more?", message_history=first.all_messages()).output


def check_messages(url: str, model: str) -> None:
    assert _anthropic(url, model).run_sync(QUESTION).output
    assert isinstance(_anthropic(url, model, output_type=Sum).run_sync(QUESTION).output, Sum)
