"""The output of a batch on disk, so that a batch killed at any moment can resume.

OUTPUT is a journal of records, one for each problem. The sheet, OUTPUT.batch.json, holds the
settings and the key in the names of the batch's runs, and is written before the first run starts.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Callable, Mapping
from io import FileIO
from pathlib import Path
from typing import Any, TypeVar

from flashedge.batch.record import BatchRecord
from flashedge.errors import ConfigError, Conflict
from flashedge.files.journal import (
    Journal,
    JournalRecord,
    check_settings,
    open_locked,
    sync_folder,
    translate_os_errors,
    write_at_end,
)
from flashedge.files.problems import ProblemId
from flashedge.literal import format_json

R = TypeVar("R", bound=JournalRecord)


class SheetJournal(Journal[ProblemId, R]):
    """The records of one batch, by problem, with their sheet."""

    def __init__(
        self,
        output: Path,
        digest: str,
        settings: Mapping[str, Any],
        parse: Callable[[Mapping[str, Any]], R],
        key: Callable[[R], ProblemId],
    ) -> None:
        """Begin a batch, or resume one. digest: of the input. parse, key: see `Journal`.

        Raises Conflict when another process works on it or it was made from another input or with
        other settings, ConfigError when the output is damaged or no batch's, StoreError when it
        can't be written.
        """
        if not output.parent.is_dir():
            raise ConfigError(f"there is no folder {output.parent}", param="output")
        sheet_path = output.with_name(output.name + ".batch.json")
        if _has_content(output) and not sheet_path.exists():
            raise _build_foreign_error(output, sheet_path)
        with translate_os_errors(sheet_path):
            self._sheet = open_locked(sheet_path, output)
        try:
            with translate_os_errors(sheet_path):
                sheet = _read_sheet(self._sheet)
                if sheet is None and _has_content(output):
                    raise _build_foreign_error(output, sheet_path)
                if sheet is None or not output.exists():  # a removed output begins a new batch
                    sheet = {"key": secrets.token_hex(6), "input": digest, "settings": settings}
                    self._sheet.truncate(0)
                    write_at_end(self._sheet, format_json(sheet, indent=1).encode())
                    sync_folder(sheet_path)
            if sheet.get("input") != digest:
                raise Conflict(
                    f"{output} was made from another input",
                    hint="give the same input and options to resume, or another --output",
                )
            check_settings(output, sheet.get("settings") or {}, settings)
            self.key = str(sheet["key"])
            """Part of the names of the batch's runs."""
            super().__init__(output, None, parse, key)
        except BaseException:
            self._sheet.close()
            raise

    def close(self) -> None:
        super().close()
        self._sheet.close()


class BatchJournal(SheetJournal[BatchRecord]):
    """The results of one batch."""

    def __init__(self, output: Path, digest: str, settings: Mapping[str, Any]) -> None:
        super().__init__(
            output, digest, settings, BatchRecord.from_json, key=lambda record: record.id
        )


def _has_content(path: Path) -> bool:
    return path.exists() and path.stat().st_size > 0


def _read_sheet(file: FileIO) -> dict[str, Any] | None:
    """The sheet's fields. None if it was not written, or not to its end."""
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
