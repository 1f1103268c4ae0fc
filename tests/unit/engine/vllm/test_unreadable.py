"""Bodies that a route's own checks stumble over are the client's fault; other errors are ours."""

from __future__ import annotations

from typing import Any

import pytest
from fastapi import FastAPI
from pydantic import BaseModel, model_validator
from starlette.testclient import TestClient

from flashedge.engine.vllm.serving.protocols import refuse_unreadable


class Body(BaseModel):
    tool: dict[str, Any]

    @model_validator(mode="before")
    @classmethod
    def look_inside(cls, data: Any) -> Any:
        """As vLLM's protocols do, before the types are known."""
        data["tool"]["function"].get("name")
        return data


@pytest.fixture
def client() -> TestClient:
    app = FastAPI()
    refuse_unreadable(app)

    @app.post("/ask")
    async def ask(body: Body) -> str:
        return str({}[body.tool["wanted"]])

    return TestClient(app, raise_server_exceptions=False)


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ({}, "KeyError: 'tool'"),
        ({"tool": {}}, "KeyError: 'function'"),
        ({"tool": {"function": 5}}, "AttributeError: 'int' object"),
    ],
)
def test_what_can_not_be_read_is_refused(client: TestClient, body: Any, words: str) -> None:
    answer = client.post("/ask", json=body)
    assert answer.status_code == 400
    error = answer.json()["error"]
    assert words in error["message"]
    assert error == {**error, "type": "BadRequestError", "param": None, "code": 400}


def test_an_error_of_the_route_itself_stays_a_bug(client: TestClient) -> None:
    answer = client.post("/ask", json={"tool": {"function": {}, "wanted": "x"}})
    assert answer.status_code == 500
