"""One spelling for equal JSON."""

from __future__ import annotations

import json
from collections.abc import Mapping

import pytest

from flashedge.answers.grouping import WordGroups, group_answers
from flashedge.answers.structured import find_calls, list_call_marks, write_canonically


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ('{"a": 1, "b": [1, 2]}', '{"b":[1,2],\n "a":1}'),
        ('<tool_call>\n{"name": "add"}\n</tool_call>', '<tool_call> {"name":"add"} </tool_call>'),
        ("[ 1 ]", "[1]"),
        ("two  words", " two words "),
        ('{"a": {"c": 1, "b": 2}}', '{"a": {"b": 2, "c": 1}}'),
    ],
)
def test_equal_answers_are_spelled_alike(first: str, second: str) -> None:
    assert write_canonically(first) == write_canonically(second)


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ('{"a": 1}', '{"a": 2}'),
        ('{"a": [1, 2]}', '{"a": [2, 1]}'),
        ('{"a": "x  y"}', '{"a": "z"}'),
        ('{"a": 1', '{"a": 1}'),
        ("a", "b"),
    ],
)
def test_others_are_not(first: str, second: str) -> None:
    assert write_canonically(first) != write_canonically(second)


def test_a_blank_text_is_no_answer() -> None:
    assert write_canonically(" \n") is None


def test_broken_json_is_text() -> None:
    assert write_canonically('{"a": [1, {') == '{"a": [1, {'
    assert write_canonically("{" * 5000) == "{" * 5000


def test_blanks_inside_json_count() -> None:
    assert write_canonically('{"code": "  x"}') != write_canonically('{"code": "    x"}')
    assert write_canonically("<call> {} </call>") == write_canonically("<call>\n{}\n\n</call>")


AUTO = {
    "structural_tag": json.dumps(
        {
            "format": {
                "type": "triggered_tags",
                "triggers": ["<tool_call>"],
                "tags": [
                    {
                        "type": "tag",
                        "begin": '<tool_call>\n{"name": "sell", "arguments": ',
                        "content": {"type": "json_schema", "json_schema": {"begin": "no mark"}},
                        "end": "}\n</tool_call>",
                    }
                ],
            }
        }
    )
}


def call(reason: str, count: int, blank: str = " ") -> str:
    arguments = f'{{"count":{blank}{count}}}'
    return f'{reason}<tool_call>\n{{"name": "sell", "arguments": {arguments}}}\n</tool_call>'


def test_a_grammar_says_how_calls_begin() -> None:
    assert list_call_marks(AUTO) == ('<tool_call>\n{"name": "sell", "arguments": ',)
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
