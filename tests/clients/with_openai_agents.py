"""OpenAI's agents package, by responses (its default) and by chat completions."""

import asyncio
from typing import Any

import agents
from agents import Agent, ModelSettings, OpenAIChatCompletionsModel, OpenAIResponsesModel, Runner
from openai import AsyncOpenAI

from tests.clients.asked import MAX_TOKENS, QUESTION, Checks, Sum, collect

agents.set_tracing_disabled(True)


@agents.function_tool
def add(numbers: Sum) -> int:
    """Add two numbers."""
    return numbers.a + numbers.b


def _agent(kind: Any, url: str, model: str, **options: Any) -> Agent[Any]:
    client = AsyncOpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0)
    # Without a temperature of zero a small model says nothing at all now and then.
    choice = options.pop("tool_choice", None)
    settings = ModelSettings(max_tokens=MAX_TOKENS, temperature=0.0, tool_choice=choice)
    options |= {"model": kind(model=model, openai_client=client), "model_settings": settings}
    return Agent(name="adder", instructions="Add.", **options)


def _make_checks(kind: Any) -> Checks:
    def check_chat(url: str, model: str) -> None:
        assert Runner.run_sync(_agent(kind, url, model), QUESTION).final_output

    def check_stream(url: str, model: str) -> None:
        async def run() -> int:
            found = Runner.run_streamed(_agent(kind, url, model), QUESTION)
            count = sum([e.type == "raw_response_event" async for e in found.stream_events()])
            assert found.final_output
            return count

        assert asyncio.run(run()) > 2

    def check_tool(url: str, model: str) -> None:
        """The call or calls, their results, and the second turn, whatever that says."""
        agent = _agent(kind, url, model, tools=[add], tool_choice="required")
        result = Runner.run_sync(agent, QUESTION, max_turns=4)
        kinds = {item.type for item in result.new_items}
        assert kinds >= {"tool_call_item", "tool_call_output_item"}, kinds

    def check_schema(url: str, model: str) -> None:
        result = Runner.run_sync(_agent(kind, url, model, output_type=Sum), QUESTION)
        assert isinstance(result.final_output, Sum)

    def check_history(url: str, model: str) -> None:
        agent = _agent(kind, url, model)
        first = Runner.run_sync(agent, QUESTION)
        again = [*first.to_input_list(), {"role": "user", "content": "And 2 more?"}]
        assert Runner.run_sync(agent, again).final_output

    return collect(locals())


CHECKS: Checks = {
    **_make_checks(OpenAIChatCompletionsModel),
    **{f"responses: {k}": c for k, c in _make_checks(OpenAIResponsesModel).items()},
}
