"""What vLLM's handlers read of a conversation, log of a refusal and answer to the unreadable."""

import logging
from types import SimpleNamespace
from typing import Any

import pytest
from fastapi import FastAPI
from pydantic import BaseModel, model_validator
from starlette.testclient import TestClient
from vllm.exceptions import GracefulHTTPError, VLLMValidationError

from flashedge.engine.http_requests import RequestTags, get_request, tag_requests
from flashedge.engine.vllm.serving import protocols
from flashedge.engine.vllm.serving.conversation import prepare_conversations
from flashedge.errors import RequestError

USER = {"role": "user", "content": "u"}
LATE = {"role": "system", "content": "late"}
TURNED = {"role": "user", "content": "late"}


class State:
    def __init__(self, *, is_system_first: bool = False) -> None:
        self.rendered: list[Any] = []
        self.online_renderer: Any = SimpleNamespace(
            renderer=SimpleNamespace(tokenizer=None),
            model_config=SimpleNamespace(is_multimodal_model=False),
            preprocess_chat=self._render,
        )
        self.anthropic_serving_messages = SimpleNamespace(_merge_inline_system=is_system_first)
        prepare_conversations(self)

    async def _render(self, request: Any, messages: Any, **options: Any) -> None:
        self.rendered = messages

    async def render(self, messages: list[Any], *, continues: bool = False) -> Any:
        options = {"add_generation_prompt": True, "continue_final_message": False}
        request = SimpleNamespace(model="m", **options)
        async with tag_requests(RequestTags(client="me", seed=1, continues=continues)):
            await self.online_renderer.preprocess_chat(request, messages)
        return request


@pytest.mark.parametrize(
    ("is_system_first", "seen"), [(True, [USER, TURNED, USER]), (False, [USER, LATE, USER])]
)
async def test_later_instructions_keep_their_place(is_system_first: bool, seen: list[Any]) -> None:
    """Also those of Anthropic's protocol, whose handler would put them in front."""
    state = State(is_system_first=is_system_first)
    assert not state.anthropic_serving_messages._merge_inline_system
    await state.render([USER, LATE, USER])
    assert state.rendered == seen


async def test_an_answer_goes_on_where_the_requests_tags_say_so() -> None:
    for continues in (False, True):
        request = await State().render([USER], continues=continues)
        assert request.continue_final_message is continues
        assert request.add_generation_prompt is not continues


def log(error: Exception, message: str = "Error in create_messages: %s") -> str:
    args, caught = (error,) if "%s" in message else (), (type(error), error, None)
    record = logging.LogRecord("tests", logging.ERROR, __file__, 1, message, args, caught)
    assert protocols.RefusalFilter().filter(record)
    return logging.Formatter().format(record)


@pytest.mark.parametrize(
    "error", [GracefulHTTPError("4 runs wait", 503), VLLMValidationError("too long\nby 3 tokens")]
)
def test_a_refusal_is_one_line(error: Exception) -> None:
    words = " ".join(str(error).split())
    assert log(error) == f"Error in create_messages: {words}"
    assert log(error, "Error in a stream.") == f"Error in a stream. {words}"


async def test_an_error_that_follows_from_a_refusal_is_one_line_and_a_bug_has_a_traceback() -> None:
    assert "KeyError: 3" in log(KeyError(3))
    async with tag_requests(RequestTags(client="c", seed=1)):
        assert "KeyError: 3" in log(KeyError(3))
        get_request().failure = RequestError("no such schema")
        assert log(ValueError("2 validation errors"), "Error.") == "Error. no such schema"


def test_the_filter_is_added_once(monkeypatch: pytest.MonkeyPatch) -> None:
    handler = logging.NullHandler()
    monkeypatch.setattr(logging.getLogger("vllm"), "handlers", [handler])
    protocols.shorten_refusals()
    protocols.shorten_refusals()
    assert len(handler.filters) == 1


class Body(BaseModel):
    tool: dict[str, Any]

    @model_validator(mode="before")
    @classmethod
    def look_inside(cls, data: Any) -> Any:
        """As vLLM's protocols do, before the types are known."""
        data["tool"]["function"].get("name")
        return data


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ({}, "KeyError: 'tool'"),
        ({"tool": {}}, "KeyError: 'function'"),
        ({"tool": {"function": 5}}, "AttributeError: 'int' object"),
    ],
)
def test_what_can_not_be_read_is_refused(body: Any, words: str) -> None:
    app = FastAPI()
    protocols.refuse_unreadable(app)

    @app.post("/ask")
    async def ask(body: Body) -> str:
        return str({}[body.tool["wanted"]])

    client = TestClient(app, raise_server_exceptions=False)
    answer = client.post("/ask", json=body)
    assert answer.status_code == 400
    error = answer.json()["error"]
    assert words in error["message"]
    assert error == {**error, "type": "BadRequestError", "param": None, "code": 400}
    bug = client.post("/ask", json={"tool": {"function": {}, "wanted": "x"}})
    assert bug.status_code == 500, "an error of the route itself"
