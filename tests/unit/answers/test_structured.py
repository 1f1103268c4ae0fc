"""One spelling for equal JSON."""

from __future__ import annotations

import json
from collections.abc import Mapping

import pytest

from flashedge.answers.grouping import WordGroups, group_answers
from flashedge.answers.structured import find_calls, list_call_marks, write_canonically


@pytest.mark.parametrize(
    ("first", "second", "equal"),
    [
        ('{"a": 1, "b": [1, 2]}', '{"b":[1,2],\n "a":1}', True),
        ('<call>\n{"name": "add"}\n</call>', '<call> {"name":"add"} </call>', True),
        *(("<call> {} </call>", "<call>\n{}\n\n</call>", True), ("[ 1 ]", "[1]", True)),
        ("two  words", " two words ", True),
        ('{"a": {"c": 1, "b": 2}}', '{"a": {"b": 2, "c": 1}}', True),
        *(('{"a": 1}', '{"a": 2}', False), ('{"a": [1, 2]}', '{"a": [2, 1]}', False)),
        *(('{"a": "x  y"}', '{"a": "z"}', False), ('{"code": "  x"}', '{"code": "    x"}', False)),
        *(('{"a": 1', '{"a": 1}', False), ("a", "b", False)),
    ],
)
def test_equal_answers_are_spelled_alike(first: str, second: str, equal: bool) -> None:
    assert (write_canonically(first) == write_canonically(second)) is equal


def test_a_blank_text_is_no_answer_and_broken_json_is_text() -> None:
    assert write_canonically(" \n") is None
    for broken in ('{"a": [1, {', "{" * 5000):
        assert write_canonically(broken) == broken


BEGIN = '<tool_call>\n{"name": "sell", "arguments": '
SCHEMA = {"type": "json_schema", "json_schema": {"begin": "no mark"}}
TAG = {"type": "tag", "begin": BEGIN, "content": SCHEMA, "end": "}\n</tool_call>"}
TAGS = {"type": "triggered_tags", "triggers": ["<tool_call>"], "tags": [TAG]}
AUTO = {"structural_tag": json.dumps({"format": TAGS})}


def call(reason: str, count: int, blank: str = " ") -> str:
    arguments = f'{{"count":{blank}{count}}}'
    return f'{reason}<tool_call>\n{{"name": "sell", "arguments": {arguments}}}\n</tool_call>'


def test_a_grammar_says_how_calls_begin() -> None:
    assert list_call_marks(AUTO) == (BEGIN,)
    assert list_call_marks({"json": {}}) == list_call_marks(None) == ()


def test_calls_are_found_behind_reasoning() -> None:
    marks = list_call_marks(AUTO)
    assert find_calls(call("It is 46.\n\n", 46), marks) == call("", 46)
    assert find_calls("I call nothing.", marks) is None


async def test_paths_with_one_call_are_one_vote_whatever_their_reasoning() -> None:
    class NoGrader:
        async def cluster(self, answers: Mapping[int, str | None]) -> Mapping[int, str | None]:
            raise AssertionError("nothing is boxed")

    paths = {
        1: ("13+33=46.\n\n", call("", 46)),
        2: ("33+13=46.\n\n", call("", 46, blank="")),
        3: ("13+33=45.\n\n", call("", 45)),
        4: ("I need no tool.",),
    }
    marks = list_call_marks(AUTO)
    found = (await group_answers(paths, "json", NoGrader(), WordGroups(), marks)).answers
    assert found[1] == found[2] != found[3]
    assert found[4] == "I need no tool."
