"""The output of a batch on disk, so that a batch killed at any moment can resume.

OUTPUT is a journal of records, one for each problem. OUTPUT.batch.json is its sheet: the settings,
a hash of the input, and the key in the ids of the batch's runs. The sheet is written before the
first run starts.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import secrets
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from io import FileIO
from pathlib import Path
from typing import Any, Protocol, Self, TypeVar

from flashedge.errors import ConfigError, Conflict
from flashedge.files import journal
from flashedge.files.problems import FileProblem, ProblemId, read_problems
from flashedge.literal import format_json
from flashedge.search.voting import BUDGET


class SheetRecord(journal.JournalRecord, Protocol):
    """What a `SheetJournal` asks of its records."""

    @property
    def id(self) -> ProblemId: ...
    @property
    def error(self) -> Mapping[str, str] | None: ...
    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Self: ...


R = TypeVar("R", bound=SheetRecord)


class SheetJournal(journal.Journal[ProblemId, R]):
    """The records of one batch, by problem, with their sheet."""

    def __init__(
        self, output: Path, items: Sequence[Any], settings: Mapping[str, Any], kind: type[R]
    ) -> None:
        """Begin a batch, or resume one. items: the input as JSON values. kind: the records' class.
        Raises Conflict when another process writes the output, or when it was made from another
        input or with other settings. Raises ConfigError when it is damaged or no batch's output,
        StoreError when it can't be written."""
        digest = hashlib.sha256(json.dumps(items).encode()).hexdigest()
        sheet_path = output.with_name(output.name + ".batch.json")
        with journal.translate_os_errors(sheet_path):
            if not output.parent.is_dir():
                raise ConfigError(f"there is no folder {output.parent}", param="output")
            if _has_content(output) and not sheet_path.exists():
                raise _build_foreign_error(output, sheet_path)
            self._sheet_file = journal.open_locked(sheet_path, output)
        try:
            with journal.translate_os_errors(sheet_path):
                sheet = _read_sheet(self._sheet_file)
                if sheet is None and _has_content(output):
                    raise _build_foreign_error(output, sheet_path)
                if sheet is None or not output.exists():  # a removed output begins a new batch
                    sheet = {"key": secrets.token_hex(6), "input": digest, "settings": settings}
                    self._sheet_file.truncate(0)
                    journal.write_at_end(self._sheet_file, format_json(sheet, indent=1).encode())
                    journal.sync_folder(sheet_path)
            if sheet.get("input") != digest:
                raise Conflict(
                    f"{output} was made from another input",
                    hint="give the same input and options to resume, or another --output",
                )
            journal.check_settings(output, sheet.get("settings") or {}, settings)
            self.key = str(sheet["key"])
            """Part of the ids of the batch's runs."""
            super().__init__(output, None, kind.from_json, key=lambda record: record.id)
        except BaseException:
            self._sheet_file.close()
            raise

    @property
    def failed(self) -> list[ProblemId]:
        return [key for key, record in self.records.items() if record.error is not None]

    def close(self) -> None:
        super().close()
        self._sheet_file.close()


def _has_content(path: Path) -> bool:
    return path.exists() and path.stat().st_size > 0


def _read_sheet(file: FileIO) -> dict[str, Any] | None:
    """Return the sheet's fields, or None if it is empty or incomplete."""
    file.seek(0)
    try:
        fields = json.loads(file.readall())
    except ValueError:
        return None
    return fields if isinstance(fields, dict) and "key" in fields else None


def _build_foreign_error(output: Path, sheet_path: Path) -> ConfigError:
    return ConfigError(
        f"{output} is no batch's output: {sheet_path.name} does not describe it",
        hint="give another --output",
        param="output",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchRecord:
    """One problem that is over: a line of the output."""

    id: ProblemId
    answer: str | None
    """None if no path has an answer, or the problem failed."""
    correct: bool | None
    """None where the input has no answer, or the problem failed."""
    tokens: int | None
    """Committed tokens of the whole tree. None if the problem failed."""
    seconds: float | None
    """Time of the problem's finished runs, without the queue. None if the problem failed."""
    run: str | None
    """The id of its last run. None if the daemon refused the problem."""
    cut_by: str | None
    """What ended the search early (see `Finish.cut_by`)."""
    error: Mapping[str, str] | None = None
    """{code, message} of a problem that failed."""

    def to_json(self) -> dict[str, Any]:
        """Return the fields, without `correct` and `error` where they are None."""
        fields = dataclasses.asdict(self)
        return {k: v for k, v in fields.items() if v is not None or k not in ("correct", "error")}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> BatchRecord:
        try:
            return cls(**{"correct": None, **data})
        except TypeError as error:
            raise ValueError(str(error)) from error


class Tally:
    """Counts over the records of a batch."""

    def __init__(self, records: Collection[BatchRecord]) -> None:
        self.done = len(records)
        """Problems that are over, failed ones included."""
        self.failed = sum(record.error is not None for record in records)
        self.graded = sum(record.correct is not None for record in records)
        """Problems that have an answer in the input and did not fail."""
        self.correct = sum(record.correct is True for record in records)
        self.accuracy = self.correct / self.graded if self.graded else None
        """The share of the graded problems that are correct. None if none is graded."""
        self.cut = sum(record.cut_by == BUDGET for record in records)
        """Problems that a token budget cut short."""
        self.tokens = sum(record.tokens or 0 for record in records)


def read_distinct_problems(path: Path) -> tuple[FileProblem, ...]:
    """Read the problems in the order of the file. Raises ConfigError, also where two share an id,
    and StoreError."""
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
