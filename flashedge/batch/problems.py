"""The problems of a batch: one JSON object a line."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import astuple, dataclass
from pathlib import Path
from typing import Any

from flashedge.errors import ConfigError

ProblemId = str | int


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchProblem:
    """id: its own, else the number of its line; answer: the right one, if the input knows it."""

    id: ProblemId
    text: str
    answer: str | None = None


def read_problems(path: Path) -> tuple[BatchProblem, ...]:
    """The problems in the order of the file; blank lines are skipped, other fields ignored.

    Raises ConfigError that names the file and the line.
    """
    try:
        lines = path.read_text(encoding="utf-8-sig").split("\n")
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "not UTF-8 text"
        raise ConfigError(f"can't read {path}: {reason}", param="input") from error
    found: dict[ProblemId, int] = {}
    problems = []
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        where = f"{path}, line {number}"
        problem = _problem(line, number, where)
        if problem.id in found:
            first = found[problem.id]
            raise ConfigError(
                f"{where}: the id {problem.id!r} is that of line {first}",
                mend="give each problem an id of its own, or none",
                param="input",
            )
        found[problem.id] = number
        problems.append(problem)
    if not problems:
        raise ConfigError(f"{path} holds no problem", param="input")
    return tuple(problems)


def digest(problems: Sequence[BatchProblem]) -> str:
    """SHA-256 over ids, texts and answers, in order."""
    return hashlib.sha256(json.dumps([astuple(p) for p in problems]).encode()).hexdigest()


def _problem(line: str, number: int, where: str) -> BatchProblem:
    try:
        data = json.loads(line)
    except ValueError as error:
        raise ConfigError(f"{where} is no JSON: {error}", param="input") from error
    if not isinstance(data, dict):
        raise ConfigError(f'{where} is no JSON object like {{"problem": "…"}}', param="input")
    text, given, answer = data.get("problem"), data.get("id"), data.get("answer")
    if not isinstance(text, str) or not text.strip():
        raise ConfigError(f'{where} has no text under "problem"', param="input")
    if given is not None and not _plain(given, str, int):
        raise ConfigError(f"{where}: the id must be a string or an integer", param="input")
    if answer is not None and not _plain(answer, str, int, float):
        raise ConfigError(f"{where}: the answer must be a string or a number", param="input")
    return BatchProblem(
        id=number if given is None else given,
        text=text.strip(),
        answer=None if answer is None else str(answer),
    )


def _plain(value: Any, *kinds: type) -> bool:
    return isinstance(value, kinds) and not isinstance(value, bool)
