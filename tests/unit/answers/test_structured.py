"""One spelling for equal JSON."""

from __future__ import annotations

import pytest

from flashedge.answers.structured import write_canonically


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
