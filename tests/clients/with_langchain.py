"""LangChain's ChatOpenAI."""

from typing import Any

from langchain_core.messages import AIMessage, HumanMessage, ToolMessage
from langchain_openai import ChatOpenAI

from tests.clients.asked import MAX_TOKENS, QUESTION, Sum


def _model(url: str, model: str, **options: Any) -> ChatOpenAI:
    options |= {"base_url": f"{url}/v1", "api_key": "none", "max_retries": 0}
    return ChatOpenAI(model=model, max_tokens=MAX_TOKENS, **options)


def check_chat(url: str, model: str) -> None:
    answer = _model(url, model).invoke(QUESTION)
    assert answer.content
    assert answer.usage_metadata["output_tokens"] > 0


def check_stream(url: str, model: str) -> None:
    assert "".join(str(chunk.content) for chunk in _model(url, model).stream(QUESTION))


def check_tool(url: str, model: str) -> None:
    calling = _model(url, model).bind_tools([Sum], tool_choice="Sum")
    (call,) = calling.invoke(QUESTION).tool_calls
    assert set(call["args"]) == {"a", "b"}
    pieces = None
    for chunk in calling.stream(QUESTION):
        pieces = chunk if pieces is None else pieces + chunk
    assert set(pieces.tool_calls[0]["args"]) == {"a", "b"}


def check_schema(url: str, model: str) -> None:
    for method in ("json_schema", "function_calling"):
        found = _model(url, model).with_structured_output(Sum, method=method).invoke(QUESTION)
        assert isinstance(found, Sum)


def check_history(url: str, model: str) -> None:
    call = {"name": "Sum", "args": {"a": 3, "b": 4}, "id": "1", "type": "tool_call"}
    first = _model(url, model).invoke(QUESTION)
    asked = [HumanMessage(QUESTION), first, HumanMessage("Use the tool.")]
    called = [AIMessage("", tool_calls=[call]), ToolMessage("7", tool_call_id="1")]
    assert _model(url, model).bind_tools([Sum]).invoke([*asked, *called]) is not None


def check_responses(url: str, model: str) -> None:
    llm = _model(url, model, use_responses_api=True)
    assert llm.invoke(QUESTION).text
    assert "".join(chunk.text for chunk in llm.stream(QUESTION))
