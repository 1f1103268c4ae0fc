"""Files of lengths: what is read, what is refused, and what is held out."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from flashedge.errors import ConfigError
from flashedge.runtime.lengths.examples import merge_prompts, read_file, split
from flashedge.scheduling.lengths.observed import OutputLengths
from flashedge.scheduling.lengths.request import PLAIN


def write(folder: Path, *rows: Any) -> Path:
    path = folder / "lengths.jsonl"
    path.write_text("\n".join(row if isinstance(row, str) else json.dumps(row) for row in rows))
    return path


def test_a_line_holds_a_prompt_and_its_lengths(tmp_path: Path) -> None:
    path = write(
        tmp_path,
        {"prompt": "2 + 2?", "lengths": [31, 64], "cut": [False, True], "max_tokens": 64},
        "",
        {"prompt": "3?", "lengths": [5], "weights": [2], "kind": "beam"},
    )
    first, second = read_file(path, "p", lambda turns: tuple(turns[0].content.encode()))
    assert first.request.text == "user: 2 + 2?"
    assert first.request.prompt_ids == tuple(b"2 + 2?")
    assert (first.request.kind, first.request.outputs) == (PLAIN, 2)
    assert first.lengths == OutputLengths.from_outputs([31, 64], [False, True])
    assert (second.request.kind, second.lengths.weights) == ("beam", (2.0,))
    assert second.request.max_tokens == 5


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ("{", "line 2: not JSON"),
        ("[]", "line 2: not an object"),
        ({"lengths": [3]}, "'prompt' is missing"),
        ({"prompt": " ", "lengths": [3]}, "prompt is not a text"),
        ({"prompt": "a", "lengths": []}, "lengths is not a list"),
        ({"prompt": "a", "lengths": [1.5]}, "must be integers"),
        ({"prompt": "a", "lengths": [0]}, "at least one token"),
        ({"prompt": "a", "lengths": [1, 2], "cut": [True]}, "one length"),
        ({"prompt": "a", "lengths": [1], "cut": [True], "weights": [-1]}, "more than 0"),
    ],
)
def test_a_wrong_line_is_named(tmp_path: Path, row: Any, message: str) -> None:
    path = write(tmp_path, {"prompt": "fine", "lengths": [3]}, row)
    with pytest.raises(ConfigError, match=message) as caught:
        read_file(path, "p")
    assert '"lengths": [31, 29]' in str(caught.value.hint)


def test_an_empty_and_a_missing_file_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="holds no lengths"):
        read_file(write(tmp_path, ""), "p")
    with pytest.raises(ConfigError, match="can't read"):
        read_file(tmp_path / "none.jsonl", "p")


def test_a_fifth_of_the_prompts_is_held_out_whatever_else_there_is(tmp_path: Path) -> None:
    rows = [{"prompt": f"What is {i}?", "lengths": [i + 1]} for i in range(500)]
    every = read_file(write(tmp_path, *rows), "p")
    training, held_out = split(every)
    assert len(training) + len(held_out) == 500
    assert 70 < len(held_out) < 130
    some, few = split(every[100:200])
    assert {one.request.text for one in few} <= {one.request.text for one in held_out}
    assert {one.request.text for one in some} <= {one.request.text for one in training}


def test_the_runs_of_a_prompt_are_merged(tmp_path: Path) -> None:
    rows = [{"prompt": p, "lengths": [t]} for p, t in (("a", 3), ("b", 4), ("a", 5))]
    first, second = merge_prompts(read_file(write(tmp_path, *rows), "p"))
    assert first.lengths == OutputLengths.from_outputs([3, 5])
    assert second.lengths == OutputLengths.from_outputs([4])
