"""What a batch says about one problem: a line of its output."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from flashedge.files.problems import ProblemId


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """One problem that is over.

    correct: None where the input has no answer, or the problem failed; tokens: of the whole tree,
    None for a failed one; seconds: of its runs, without the queue; run: the last of its runs;
    error: {code, message} of one that failed.
    """

    id: ProblemId
    answer: str | None
    correct: bool | None
    tokens: int | None
    seconds: float | None
    run: str | None
    cut_by: str | None
    error: Mapping[str, str] | None = None

    def to_json(self) -> dict[str, Any]:
        """Without `correct` and `error` where they are None."""
        fields = dataclasses.asdict(self)
        return {k: v for k, v in fields.items() if v is not None or k not in ("correct", "error")}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Record:
        """Raises ValueError."""
        try:
            return cls(**{"correct": None, **data})
        except TypeError as error:
            raise ValueError(str(error)) from error


@dataclass(frozen=True, slots=True, kw_only=True)
class Tally:
    """Counts over records. graded: those that the input has an answer for and that did not fail."""

    done: int
    failed: int
    graded: int
    correct: int
    cut: int
    tokens: int

    @property
    def accuracy(self) -> float | None:
        return self.correct / self.graded if self.graded else None


def tally(records: Mapping[ProblemId, Record]) -> Tally:
    values = records.values()
    return Tally(
        done=len(values),
        failed=sum(r.error is not None for r in values),
        graded=sum(r.correct is not None for r in values),
        correct=sum(r.correct is True for r in values),
        cut=sum(r.cut_by == "budget" for r in values),
        tokens=sum(r.tokens or 0 for r in values),
    )
