"""Schemas that would take minutes to compile are refused; what agents send is not."""

import json
from types import SimpleNamespace
from typing import Any

import pytest

from flashedge.engine.vllm.serving import guided_json
from flashedge.engine.vllm.serving.guided_json import bound_guidance, check_size
from flashedge.errors import RequestError


def make_object(properties: int) -> dict[str, Any]:
    return {"type": "object", "properties": {f"p{i}": {} for i in range(properties)}}


def guide(**fields: Any) -> Any:
    given = {"json": None, "structural_tag": None, **fields}
    return SimpleNamespace(structured_outputs=SimpleNamespace(**given))


@pytest.mark.parametrize(
    "schema",
    [
        True,
        [],
        {"type": "object", "properties": None, "enum": "x"},
        make_object(guided_json.MOST_PROPERTIES),
        [make_object(20) for _ in range(1000)],
        {"enum": list(range(guided_json.MOST_CHOICES))},
    ],
)
def test_what_compiles_in_seconds_is_let_through(schema: Any) -> None:
    check_size(schema)


@pytest.mark.parametrize(
    "schema",
    [
        make_object(guided_json.MOST_PROPERTIES + 1),
        {"anyOf": [make_object(1500), {"items": make_object(1500)}]},
        {"enum": list(range(guided_json.MOST_CHOICES + 1))},
        {"properties": {"a": {"enum": [0] * 15_000}, "b": {"enum": [0] * 15_000}}},
    ],
)
def test_what_would_take_minutes_is_refused(schema: Any) -> None:
    with pytest.raises(RequestError, match="minutes to compile"):
        check_size(schema)
    for given in (
        {"json": schema},
        {"json": json.dumps(schema)},
        {"structural_tag": json.dumps({"format": {"type": "json_schema", "json_schema": schema}})},
    ):
        with pytest.raises(RequestError):
            bound_guidance(guide(**given))


def test_requests_without_a_schema_and_broken_ones_are_vllms() -> None:
    bound_guidance(SimpleNamespace(structured_outputs=None))  # type: ignore[arg-type]
    broken = guide(json="{")
    bound_guidance(broken)
    assert broken.structured_outputs.json == "{"
    bound_guidance(guide(structural_tag="{"))
    with pytest.raises(RequestError, match="nested too deeply"):
        bound_guidance(guide(structural_tag="[" * 100_000))


def test_blanks_in_a_tool_call_are_limited() -> None:
    tag = {"format": {"type": "json_schema", "json_schema": {"type": "json_schema"}}}
    params = guide(structural_tag=json.dumps(tag))
    bound_guidance(params)
    found = json.loads(params.structured_outputs.structural_tag)
    assert found["format"] == {**tag["format"], "max_whitespace_cnt": 2}
