"""Files of problems: JSON lines with our own field names or those of common data sets."""

import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from flashedge.errors import ConfigError, StoreError

_QUESTION = ("problem", "question")
_ID = ("id", "unique_id", "idx")
_FAMILY = ("family", "subject")
_GSM8K_MARK = "####"  # the answer follows it in a worked solution
_HINT = 'each line is an object like {"problem": "What is 12 + 7?", "answer": "19"}'

ProblemId = str | int


@dataclass(frozen=True, slots=True, kw_only=True)
class FileProblem:
    index: int
    """Its position among the problems of the file, from 0."""
    id: ProblemId
    """Its id in the file, or else its line number."""
    text: str
    answer: str | None = None
    family: str | None = None
    """The kind of problem, such as a subject."""
    steps: int | None = None
    """Number of steps of its solution. None where the file does not say it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LabelledProblem(FileProblem):
    answer: str


def read_problems(path: Path, limit: int | None = None) -> tuple[FileProblem, ...]:
    """The first `limit` problems of a file; None reads all. Raises ConfigError, which names the
    line, and StoreError. The fields are problem or question, and optionally answer, id (or
    unique_id, idx), family (or subject) and steps. An answer is a text or a number. Of a GSM8K
    solution it is the part after ####. Other fields are ignored."""
    return tuple(problem for _, problem in _read(path, limit))


def read_labelled(path: Path, limit: int | None = None) -> tuple[LabelledProblem, ...]:
    """Like `read_problems`, for files in which every problem has an answer."""
    found = []
    for number, problem in _read(path, limit):
        if problem.answer is None:
            raise ConfigError(f"{path}, line {number}: answer is missing", hint=_HINT)
        found.append(LabelledProblem(**asdict(problem)))
    return tuple(found)


def _read(path: Path, limit: int | None) -> Iterator[tuple[int, FileProblem]]:
    """Yield each problem with its line number. Raises ConfigError."""
    lines = islice(read_objects(path, _HINT), limit)
    for index, (number, fields) in enumerate(lines):
        try:
            yield number, _parse_problem(index, number, fields)
        except ValueError as error:
            raise ConfigError(f"{path}, line {number}: {error}", hint=_HINT) from error


def read_objects(path: Path, hint: str) -> Iterator[tuple[int, Mapping[str, Any]]]:
    """Yield the object of each line that is not blank, with the line's number. Raises ConfigError
    for an empty file or a wrong line, and StoreError for a file that can't be read. hint: shows the
    user a right line."""
    try:
        lines = path.read_text(encoding="utf-8-sig").split("\n")
    except OSError as error:
        raise StoreError(f"can't read {path}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"can't read {path}: not UTF-8 text") from error
    is_empty = True
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        is_empty = False
        try:
            fields = json.loads(line)
        except ValueError as error:
            raise ConfigError(f"{path}, line {number}: not JSON", hint=hint) from error
        if not isinstance(fields, Mapping):
            raise ConfigError(f"{path}, line {number}: not an object", hint=hint)
        yield number, fields
    if is_empty:
        raise ConfigError(f"{path} has no line with an object", hint=hint)


def _parse_problem(index: int, number: int, fields: Mapping[str, Any]) -> FileProblem:
    question = _find_first(fields, _QUESTION)
    if not isinstance(question, str) or not question.strip():
        raise ValueError("problem is missing or is not a text")
    own_id, family = _find_first(fields, _ID), _find_first(fields, _FAMILY)
    steps = fields.get("steps")
    if own_id is not None and not _is_plain(own_id, str, int):
        raise ValueError("id is neither a text nor an integer")
    return FileProblem(
        index=index,
        id=number if own_id is None else own_id,
        text=question.strip(),
        answer=None if fields.get("answer") is None else _parse_answer(fields["answer"]),
        family=None if family is None else str(family),
        steps=steps if _is_plain(steps, int) else None,
    )


def _parse_answer(value: Any) -> str:
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if _is_plain(value, int) or (isinstance(value, float) and math.isfinite(value)):
        return str(value)
    if not isinstance(value, str):
        raise ValueError("answer is neither a text nor a finite number")
    _, mark, answer = value.rpartition(_GSM8K_MARK)
    answer = answer.strip().replace(",", "") if mark else value.strip()
    if not answer:
        raise ValueError("answer is empty")
    return answer


def _find_first(fields: Mapping[str, Any], names: tuple[str, ...]) -> Any:
    return next((fields[name] for name in names if fields.get(name) is not None), None)


def _is_plain(value: Any, *kinds: type) -> bool:
    """Whether `value` is of one of `kinds` and not a boolean."""
    return isinstance(value, kinds) and not isinstance(value, bool)
