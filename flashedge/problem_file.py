"""Problems with known answers: JSON lines, in our own fields or those of the usual data sets."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from flashedge.errors import ConfigError

_QUESTION = ("problem", "question")
_NAME = ("id", "unique_id", "idx")
_FAMILY = ("family", "subject")
_GSM8K_MARK = "####"  # behind it stands the answer of a worked solution
_MEND = 'each line is an object like {"problem": "2 + 2?", "answer": "4"}'


@dataclass(frozen=True, slots=True, kw_only=True)
class LabelledProblem:
    """index: its place among the file's problems, from 0; id: what the file calls it; steps: how
    many its solution takes, where the file says so."""

    index: int
    id: str
    text: str
    answer: str
    family: str | None = None
    steps: int | None = None


def read_problems(path: Path, limit: int | None = None) -> tuple[LabelledProblem, ...]:
    """The first `limit` problems of a file (None: all). Raises ConfigError naming the line.

    Fields: problem or question, answer (a text or a number; of a GSM8K solution what stands behind
    ####); optional id, unique_id or idx, family or subject, steps. Others are passed over.
    """
    try:
        text = path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "not UTF-8 text"
        raise ConfigError(f"can't read {path}: {reason}") from error
    found = tuple(_problems(path, text, limit))
    if not found:
        raise ConfigError(f"{path} holds no problem", mend=_MEND)
    return found


def _problems(path: Path, text: str, limit: int | None) -> Iterator[LabelledProblem]:
    index = 0
    for number, line in enumerate(text.split("\n"), start=1):
        if limit is not None and index >= limit:
            return
        if not line.strip():
            continue
        try:
            yield _problem(index, json.loads(line))
        except ValueError as error:
            told = "not JSON" if isinstance(error, json.JSONDecodeError) else str(error)
            raise ConfigError(f"{path}, line {number}: {told}", mend=_MEND) from error
        index += 1


def _problem(index: int, fields: Any) -> LabelledProblem:
    """Raises ValueError."""
    if not isinstance(fields, Mapping):
        raise ValueError("not an object")
    question = _first(fields, _QUESTION)
    if not isinstance(question, str) or not question.strip():
        raise ValueError("problem is missing or no text")
    name, family, steps = _first(fields, _NAME), _first(fields, _FAMILY), fields.get("steps")
    counted = isinstance(steps, int) and not isinstance(steps, bool)
    return LabelledProblem(
        index=index,
        id=str(index if name is None else name),
        text=question.strip(),
        answer=_answer(fields.get("answer")),
        family=None if family is None else str(family),
        steps=steps if counted else None,
    )


def _answer(value: Any) -> str:
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if isinstance(value, int | float) and not isinstance(value, bool):
        return str(value)
    if not isinstance(value, str) or not value.strip():
        raise ValueError("answer is missing or neither text nor number")
    _, mark, behind = value.rpartition(_GSM8K_MARK)
    return behind.strip().replace(",", "") if mark else value.strip()


def _first(fields: Mapping[str, Any], names: tuple[str, ...]) -> Any:
    return next((fields[name] for name in names if fields.get(name) is not None), None)
