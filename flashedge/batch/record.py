"""The input of a batch, and its output for each problem, with counts over all of them."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from flashedge.errors import ConfigError
from flashedge.files.problems import FileProblem, ProblemId, read_problems


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchRecord:
    """One finished problem: a line of the output."""

    id: ProblemId
    answer: str | None

    correct: bool | None
    """None where the input has no answer, or the problem failed."""

    tokens: int | None
    """Committed tokens of the whole tree."""

    seconds: float | None
    """Time of the problem's runs, without the queue."""

    run: str | None
    """The id of its last run."""

    cut_by: str | None
    error: Mapping[str, str] | None = None
    """{code, message} of a problem that failed."""

    def to_json(self) -> dict[str, Any]:
        """The fields, without `correct` and `error` where they are None."""
        fields = dataclasses.asdict(self)
        return {k: v for k, v in fields.items() if v is not None or k not in ("correct", "error")}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> BatchRecord:
        try:
            return cls(**{"correct": None, **data})
        except TypeError as error:
            raise ValueError(str(error)) from error


@dataclass(frozen=True, slots=True, kw_only=True)
class Tally:
    done: int
    failed: int

    graded: int
    """Problems that have an answer in the input and did not fail."""

    correct: int

    cut: int
    """Problems that the budget cut short."""

    tokens: int

    @property
    def accuracy(self) -> float | None:
        return self.correct / self.graded if self.graded else None


def count_records(records: Mapping[ProblemId, BatchRecord]) -> Tally:
    values = records.values()
    return Tally(
        done=len(values),
        failed=sum(r.error is not None for r in values),
        graded=sum(r.correct is not None for r in values),
        correct=sum(r.correct is True for r in values),
        cut=sum(r.cut_by == "budget" for r in values),
        tokens=sum(r.tokens or 0 for r in values),
    )


def list_failed(records: Mapping[ProblemId, BatchRecord]) -> list[ProblemId]:
    return [i for i, record in records.items() if record.error is not None]


def read_distinct_problems(path: Path) -> tuple[FileProblem, ...]:
    """The problems in the order of the file. Raises ConfigError, also where two share an id."""
    problems = read_problems(path)
    seen = set[ProblemId]()
    for problem in problems:
        if problem.id in seen:
            raise ConfigError(
                f"{path}: two problems have the id {problem.id!r}",
                hint="give each problem an id of its own, or none",
                param="input",
            )
        seen.add(problem.id)
    return problems


def digest_problems(problems: Sequence[FileProblem]) -> str:
    """SHA-256 over ids, texts and answers, in order."""
    fields = [(problem.id, problem.text, problem.answer) for problem in problems]
    return hashlib.sha256(json.dumps(fields).encode()).hexdigest()
