"""Problem files: our own fields and those of the usual data sets."""

import json
import math
from pathlib import Path
from typing import Any

import pytest

from flashedge.errors import ConfigError, StoreError
from flashedge.files.problems import FileProblem, LabelledProblem, read_labelled, read_problems


def write(path: Path, *lines: Any) -> Path:
    path.write_text("\n".join(x if isinstance(x, str) else json.dumps(x) for x in lines))
    return path


def test_every_field_is_read_and_blank_lines_are_skipped(tmp_path: Path) -> None:
    own = {"id": "a-1", "problem": " 2 + 2? ", "answer": "4", "family": "sum", "steps": 3}
    found = read_labelled(write(tmp_path / "p", own, "", {"problem": "x", "answer": 5}))
    assert found == (
        LabelledProblem(index=0, id="a-1", text="2 + 2?", answer="4", family="sum", steps=3),
        LabelledProblem(index=1, id=3, text="x", answer="5"),
    )


@pytest.mark.parametrize(
    ("line", "id", "answer", "family"),
    [
        ({"question": "q", "answer": "2 * 3 = <<2*3=6>>6.\n#### 1,600", "idx": 0}, 0, "1600", None),
        ({"question": "q", "problem": "q", "answer": 27.0, "id": 0}, 0, "27", None),
        ({"problem": "q", "answer": 0.5, "id": 7}, 7, "0.5", None),
        (
            {"problem": "q", "answer": "\\frac{1}{2}", "unique_id": "t/1", "subject": "Algebra"},
            "t/1",
            "\\frac{1}{2}",
            "Algebra",
        ),
    ],
)
def test_the_field_names_of_common_data_sets_are_read(
    tmp_path: Path, line: dict[str, Any], id: str | int, answer: str, family: str | None
) -> None:
    (found,) = read_labelled(write(tmp_path / "p", line))
    assert (found.id, found.answer, found.family) == (id, answer, family)


def test_reading_stops_at_the_limit(tmp_path: Path) -> None:
    path = write(tmp_path / "p", {"problem": "x", "answer": "1"}, "broken")
    assert len(read_problems(path, limit=1)) == 1


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("{", "line 2: not JSON"),
        ("[]", "line 2: not an object"),
        ({"answer": "1"}, "line 2: problem"),
        ({"problem": 0, "answer": "1"}, "line 2: problem"),
        ({"problem": " ", "answer": "1"}, "line 2: problem"),
        ({"problem": "x"}, "line 2: answer"),
        ({"problem": "x", "answer": True}, "line 2: answer"),
        (
            {"problem": "x", "answer": math.nan},
            "line 2: answer is neither a text nor a finite number",
        ),
        ({"problem": "x", "answer": " "}, "line 2: answer is empty"),
        ({"problem": "x", "answer": "6.\n#### "}, "line 2: answer is empty"),
        ({"problem": "x", "answer": "1", "id": []}, "line 2: id"),
    ],
)
def test_a_wrong_line_is_named(tmp_path: Path, line: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        read_labelled(write(tmp_path / "p", {"problem": "x", "answer": "1"}, line))


def test_answers_may_be_missing_when_they_are_not_needed(tmp_path: Path) -> None:
    path = write(tmp_path / "p", {"problem": "x", "answer": "1"}, {"problem": "y"})
    assert read_problems(path)[1] == FileProblem(index=1, id=2, text="y")


def test_a_missing_or_empty_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="can't read"):
        read_problems(tmp_path / "missing")
    with pytest.raises(ConfigError, match="has no line with an object"):
        read_problems(write(tmp_path / "p", "", ""))
    (tmp_path / "binary").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ConfigError, match="not UTF-8"):
        read_problems(tmp_path / "binary")
