"""Problems, their answers where they are known: JSON lines in our own fields or in those of the
usual data sets.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from flashedge.errors import ConfigError

_QUESTION = ("problem", "question")
_NAME = ("id", "unique_id", "idx")
_FAMILY = ("family", "subject")
_GSM8K_MARK = "####"  # behind it stands the answer of a worked solution
_MEND = 'each line is an object like {"problem": "2 + 2?", "answer": "4"}'

ProblemId = str | int


@dataclass(frozen=True, slots=True, kw_only=True)
class FileProblem:
    """index: its place among the file's problems, from 0; id: what the file calls it, else the
    number of its line; steps: how many its solution takes, where the file says so."""

    index: int
    id: ProblemId
    text: str
    answer: str | None = None
    family: str | None = None
    steps: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class LabelledProblem(FileProblem):
    """A problem whose answer is known."""

    answer: str


def read_problems(path: Path, limit: int | None = None) -> tuple[FileProblem, ...]:
    """The first `limit` problems of a file (None: all). Raises ConfigError naming the line.

    Fields: problem or question; optional answer (a text or a number; of a GSM8K solution what
    stands behind ####), id, unique_id or idx, family or subject, steps. Others are passed over.
    """
    return tuple(problem for _, problem in _read(path, limit))


def read_labelled(path: Path, limit: int | None = None) -> tuple[LabelledProblem, ...]:
    """The same of a file whose every problem has an answer. Raises ConfigError naming the line."""
    found = []
    for number, problem in _read(path, limit):
        if problem.answer is None:
            raise ConfigError(f"{path}, line {number}: answer is missing", hint=_MEND)
        found.append(LabelledProblem(**{**asdict(problem), "answer": problem.answer}))
    return tuple(found)


def _read(path: Path, limit: int | None) -> Iterator[tuple[int, FileProblem]]:
    """Problems with the numbers of their lines, each read as it is asked for."""
    try:
        lines = path.read_text(encoding="utf-8-sig").split("\n")
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "not UTF-8 text"
        raise ConfigError(f"can't read {path}: {reason}") from error
    index = 0
    for number, line in enumerate(lines, start=1):
        if limit is not None and index >= limit:
            return
        if not line.strip():
            continue
        try:
            yield number, _problem(index, number, json.loads(line))
        except ValueError as error:
            told = "not JSON" if isinstance(error, json.JSONDecodeError) else str(error)
            raise ConfigError(f"{path}, line {number}: {told}", hint=_MEND) from error
        index += 1
    if index == 0:
        raise ConfigError(f"{path} holds no problem", hint=_MEND)


def _problem(index: int, number: int, fields: Any) -> FileProblem:
    """Raises ValueError."""
    if not isinstance(fields, Mapping):
        raise ValueError("not an object")
    question = _first(fields, _QUESTION)
    if not isinstance(question, str) or not question.strip():
        raise ValueError("problem is missing or no text")
    name, family, steps = _first(fields, _NAME), _first(fields, _FAMILY), fields.get("steps")
    if name is not None and not _plain(name, str, int):
        raise ValueError("id is neither text nor integer")
    return FileProblem(
        index=index,
        id=number if name is None else name,
        text=question.strip(),
        answer=None if fields.get("answer") is None else _answer(fields["answer"]),
        family=None if family is None else str(family),
        steps=steps if _plain(steps, int) else None,
    )


def _answer(value: Any) -> str:
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if _plain(value, int, float):
        return str(value)
    if not isinstance(value, str) or not value.strip():
        raise ValueError("answer is neither text nor number")
    _, mark, behind = value.rpartition(_GSM8K_MARK)
    return behind.strip().replace(",", "") if mark else value.strip()


def _first(fields: Mapping[str, Any], names: tuple[str, ...]) -> Any:
    return next((fields[name] for name in names if fields.get(name) is not None), None)


def _plain(value: Any, *kinds: type) -> bool:
    return isinstance(value, kinds) and not isinstance(value, bool)


def file_digest(path: Path) -> str:
    """16 hex digits of what the file holds: the same problems, the same digits."""
    return hashlib.sha256(path.read_bytes()).hexdigest()[:16]
