"""Random bodies, and ones made to hurt, to vLLM's own handlers: no 5xx, and the engines go on."""

import json
from typing import Any

import httpx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from flashedge.api.paths import MESSAGES
from tests.support.random_bodies import (
    CHAT,
    PROTOCOLS,
    RESPONSES,
    SEARCHES,
    change_bodies,
    check_answer,
)

EXAMPLES = 25
"""Bodies for each route and name. 8,200 found nothing more."""
JSON = {"content-type": "application/json"}
SAY = [{"role": "user", "content": "3 + 4?"}]
NO_TEXT_FITS = "no further text fits the schema or grammar"


@pytest.mark.parametrize("path", PROTOCOLS)
def test_bodies_that_are_nearly_valid(client: httpx.Client, path: str) -> None:
    names = ["bundled", "bundled:self_consistency-2"] if path in SEARCHES else ["bundled"]

    @settings(max_examples=EXAMPLES, deadline=None, suppress_health_check=list(HealthCheck))
    @given(change_bodies(path), st.sampled_from(names))
    def send(body: dict[str, Any], name: str) -> None:
        text = json.dumps({"model": name, **body}).encode()
        check_answer(path, client.post(path, content=text, headers=JSON, timeout=60))

    send()


def nest(depth: int) -> dict[str, Any]:
    """A schema of objects within objects."""
    schema: dict[str, Any] = {"type": "integer"}
    for _ in range(depth):
        schema = {"type": "object", "properties": {"a": schema}, "required": ["a"]}
    return schema


def guide(schema: Any) -> dict[str, Any]:
    shape = {"name": "x", "schema": schema}
    return {"response_format": {"type": "json_schema", "json_schema": shape}}


def call(schema: Any) -> dict[str, Any]:
    tool = {"type": "function", "function": {"name": "f", "parameters": schema}}
    return {"tools": [tool], "tool_choice": "required"}


def constrain(**form: str) -> dict[str, Any]:
    return {"structured_outputs": form}


WIDE = {"type": "object", "properties": {f"p{i}": {} for i in range(5000)}}
EMPTY = {"type": "array", "prefixItems": [], "items": False, "minItems": 2}
NAMELESS = {"tools": [{"type": "function", "function": {"parameters": {}}}]}
NAMED = {"tool_choice": {"type": "function", "function": {"name": "f"}}}
HURTFUL: dict[str, tuple[dict[str, Any], str]] = {
    "a deep schema": (guide(nest(200)), "nested too deeply"),
    "a deep tool": (call(nest(200)), "depth"),
    "a schema of itself": (guide({"$ref": "#"}), NO_TEXT_FITS),
    "a grammar without end": (constrain(grammar="root ::= root root"), NO_TEXT_FITS),
    "a broken pattern": (constrain(regex="(((("), "parenthesis"),
    "a deep pattern": (constrain(regex="(" * 5000 + "a" + ")" * 5000), "Nest layer"),
    "a list without items": (guide(EMPTY), "minItems"),
    "a schema of thousands of fields": (guide(WIDE), "minutes to compile"),
    "tools of thousands of fields": (call(WIDE), "minutes to compile"),
    "a tool without a name": ({**NAMELESS, **NAMED}, "missing or of a wrong type"),
}


@pytest.mark.parametrize("model", ["bundled", "bundled:beam-2"])
@pytest.mark.parametrize("name", HURTFUL)
def test_bodies_that_are_made_to_hurt(client: httpx.Client, name: str, model: str) -> None:
    fields, words = HURTFUL[name]
    body = {"model": model, "messages": SAY, "max_tokens": 5, **fields}
    answer = client.post(CHAT, json=body, timeout=60)
    check_answer(CHAT, answer)
    assert answer.status_code == 400
    assert words in answer.json()["error"]["message"]


@pytest.mark.parametrize("model", ["bundled", "bundled:beam-2"])
def test_a_failure_within_a_stream_has_the_form_of_its_protocol(
    client: httpx.Client, model: str
) -> None:
    endless = {"type": "json_schema", "schema": {"$ref": "#"}}
    cases: dict[str, dict[str, Any]] = {
        CHAT: {"messages": SAY, "max_tokens": 5, **guide(endless["schema"])},
        MESSAGES: {"messages": SAY, "max_tokens": 5, "output_config": {"format": endless}},
        RESPONSES: {"input": "3 + 4?", "max_output_tokens": 5, "text": {"format": endless}},
    }
    cases[RESPONSES]["text"]["format"] = {**endless, "name": "x"}
    for path, body in cases.items():
        answer = client.post(path, json={"model": model, "stream": True, **body}, timeout=60)
        assert answer.status_code == 200
        check_answer(path, answer)
        assert NO_TEXT_FITS in answer.text.replace("data: [DONE]", "").rstrip().split("\n\n")[-1]


@pytest.mark.parametrize("model", ["bundled", "bundled:beam-2"])
def test_images_are_refused_by_name_in_every_protocol(client: httpx.Client, model: str) -> None:
    data = "iVBORw0KGgo="
    source = {"type": "base64", "media_type": "image/png", "data": data}
    url = f"data:image/png;base64,{data}"
    parts = [{"type": "text", "text": "a.png"}, {"type": "image", "source": source}]
    result = {"type": "tool_result", "tool_use_id": "t-1", "content": parts}
    use = {"type": "tool_use", "id": "t-1", "name": "Read", "input": {"path": "a.png"}}
    read = [*SAY, {"role": "assistant", "content": [use]}, {"role": "user", "content": [result]}]
    image: dict[str, Any] = {"type": "image_url", "image_url": {"url": url}}
    cases: dict[str, dict[str, Any]] = {
        CHAT: {"messages": [{"role": "user", "content": [image]}]},
        RESPONSES: {
            "input": [{"role": "user", "content": [{"type": "input_image", "image_url": url}]}]
        },
        MESSAGES: {"max_tokens": 5, "messages": read},
    }
    for path, body in cases.items():
        answer = client.post(path, json={"model": model, **body}, timeout=60)
        assert answer.status_code == 400
        check_answer(path, answer)
        message = answer.json()["error"]["message"]
        assert message.startswith(f"{model} reads text only, but the conversation has a part of")


def test_the_engines_go_on(client: httpx.Client) -> None:
    engines = client.get("/v1/status", timeout=60).json()["engines"]
    assert {engine["state"] for engine in engines.values()} == {"ready"}
    assert {engine["restarts"] for engine in engines.values()} == {0}
    body = {"model": "bundled", "messages": SAY, "max_tokens": 5}
    assert client.post(CHAT, json=body, timeout=60).status_code == 200
