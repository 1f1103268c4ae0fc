"""LlamaIndex's OpenAILike."""

from llama_index.core.llms import ChatMessage
from llama_index.core.prompts import PromptTemplate
from llama_index.core.tools import FunctionTool
from llama_index.llms.openai_like import OpenAILike

from tests.clients.asked import MAX_TOKENS, QUESTION, Sum, add

SAY = [ChatMessage(role="user", content=QUESTION)]


def _model(url: str, model: str) -> OpenAILike:
    kind = {"is_chat_model": True, "is_function_calling_model": True}
    options = {"api_key": "none", "max_tokens": MAX_TOKENS, "max_retries": 0, **kind}
    return OpenAILike(model=model, api_base=f"{url}/v1", **options)


def check_chat(url: str, model: str) -> None:
    assert _model(url, model).chat(SAY).message.content


def check_stream(url: str, model: str) -> None:
    assert "".join(piece.delta or "" for piece in _model(url, model).stream_chat(SAY))


def check_tool(url: str, model: str) -> None:
    llm = _model(url, model)
    tool = FunctionTool.from_defaults(add, fn_schema=Sum)
    answer = llm.chat_with_tools([tool], user_msg=QUESTION, tool_required=True)
    (call, *_) = llm.get_tool_calls_from_response(answer)
    assert set(call.tool_kwargs) == {"a", "b"}


def check_schema(url: str, model: str) -> None:
    found = _model(url, model).structured_predict(Sum, PromptTemplate(QUESTION))
    assert isinstance(found, Sum)


def check_history(url: str, model: str) -> None:
    llm = _model(url, model)
    first = llm.chat(SAY).message
    assert llm.chat([*SAY, first, ChatMessage(role="user", content="Sure?")]).message.content
