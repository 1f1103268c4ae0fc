"""The output of a batch on disk, so that a batch killed at any moment can go on.

OUTPUT holds one record a line, each on the disk before the next. OUTPUT.batch.json beside it says
what was asked and holds the key that the batch's runs are named by; it is written before the first
run is started, and locked while a batch works on it.
"""

from __future__ import annotations

import fcntl
import json
import os
import secrets
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from flashedge.batch.record import Record
from flashedge.errors import ConfigError, Conflict, StoreError
from flashedge.files.problems import ProblemId

_OTHER = "give the same input and options to go on, or another --output"


class Ledger:
    """The records of one batch. Use as a context manager, or call `close`."""

    def __init__(self, output: Path, asked: Mapping[str, Any]) -> None:
        """Begin a batch, or go on with one. asked: the input's digest and the settings.

        A torn last line is cut off. Raises Conflict when another process works on it or it was
        made with something else asked, ConfigError when the output is no batch's or damaged,
        StoreError when it can't be written.
        """
        self.path = output
        self.records: dict[ProblemId, Record] = {}
        self._sheet_path = output.with_name(output.name + ".batch.json")
        self._files: list[int] = []
        if not output.parent.is_dir():
            raise ConfigError(f"there is no folder {output.parent}", param="output")
        if output.exists() and output.stat().st_size and not self._sheet_path.exists():
            raise self._foreign()
        try:
            with _told(self._sheet_path):
                sheet = self._opened(self._sheet_path)
                self._lock(sheet)
                told = _sheet(sheet)
            self.key = self._go_on(told, asked) if self._begun(told) else self._begin(sheet, asked)
            with _told(output):
                self._out = self._opened(output)
                self._read()
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        while self._files:
            os.close(self._files.pop())

    def __enter__(self) -> Ledger:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def append(self, record: Record) -> None:
        """Keep a record: it is on the disk when this returns. Raises StoreError, keeping none."""
        with _told(self.path):
            self._write(_line(record))
        self.records[record.id] = record

    def drop(self, ids: Collection[ProblemId]) -> None:
        """Forget records, all at once or none. Raises StoreError."""
        kept = {i: r for i, r in self.records.items() if i not in ids}
        fresh = self.path.with_name(self.path.name + ".new")
        with _told(self.path):
            fresh.write_bytes(b"".join(map(_line, kept.values())))
            out = self._opened(fresh)
            os.fsync(out)
            fresh.replace(self.path)
            self._sync_folder()
        self._out, self.records = out, kept

    # ------------------------------------------------------------ inner

    def _opened(self, path: Path) -> int:
        file = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
        self._files.append(file)
        return file

    def _lock(self, file: int) -> None:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise Conflict(
                f"another batch writes {self.path}", hint="wait for it, or give another --output"
            ) from error

    def _begun(self, told: Mapping[str, Any] | None) -> bool:
        """Whether a batch began here; an output that somebody removed begins anew."""
        exists = self.path.exists()
        if exists and self.path.stat().st_size and told is None:
            raise self._foreign()
        return exists and told is not None

    def _foreign(self) -> ConfigError:
        return ConfigError(
            f"{self.path} is no batch's output: {self._sheet_path.name} does not say whose",
            hint="give another --output",
            param="output",
        )

    def _begin(self, sheet: int, asked: Mapping[str, Any]) -> str:
        key = secrets.token_hex(6)
        text = json.dumps({"key": key, **asked}, indent=1, ensure_ascii=False)
        with _told(self._sheet_path):
            os.ftruncate(sheet, 0)
            os.pwrite(sheet, text.encode(), 0)
            os.fsync(sheet)
            self._sync_folder()
        return key

    def _go_on(self, told: Mapping[str, Any] | None, asked: Mapping[str, Any]) -> str:
        assert told is not None, "a batch that began has said what was asked"
        if told.get("input") != asked["input"]:
            raise Conflict(f"{self.path} was made from another input", hint=_OTHER)
        before, now = told.get("settings") or {}, asked["settings"]
        for name in sorted({*before, *now}):
            if before.get(name) != now.get(name):
                was, wanted = _said(name, before), _said(name, now)
                raise Conflict(f"{self.path} was made with {was}, not {wanted}", hint=_OTHER)
        return str(told["key"])

    def _read(self) -> None:
        """The records that are there. Cuts off a last line that was not written whole."""
        data = self.path.read_bytes()
        whole, _, rest = data.rpartition(b"\n")
        if rest and _parsed(rest) is not None:  # whole, but for the line break
            self._write(b"\n")
            whole = data
        elif rest:
            os.ftruncate(self._out, len(data) - len(rest))
        for number, line in enumerate(whole.split(b"\n") if whole else [], start=1):
            record = _parsed(line)
            if record is None or record.id in self.records:
                raise ConfigError(
                    f"{self.path}, line {number} is damaged or a problem's second",
                    hint="remove the line: what the daemon keeps is not solved again",
                    param="output",
                )
            self.records[record.id] = record

    def _write(self, line: bytes) -> None:
        """At the end, whole and on the disk, or not at all."""
        end = os.lseek(self._out, 0, os.SEEK_END)
        try:
            written = 0
            while written < len(line):
                written += os.write(self._out, line[written:])
            os.fsync(self._out)
        except OSError:
            os.ftruncate(self._out, end)
            raise

    def _sync_folder(self) -> None:
        folder = os.open(self.path.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)


def _line(record: Record) -> bytes:
    return json.dumps(record.to_json(), ensure_ascii=False).encode() + b"\n"


def _parsed(line: bytes) -> Record | None:
    try:
        return Record.from_json(json.loads(line))
    except (ValueError, TypeError):
        return None


def _sheet(file: int) -> dict[str, Any] | None:
    """What was asked; None where nothing was written, or not to its end."""
    try:
        told = json.loads(os.pread(file, os.fstat(file).st_size, 0))
    except ValueError:
        return None
    return told if isinstance(told, dict) and "key" in told else None


def _said(name: str, settings: Mapping[str, Any]) -> str:
    return f"{name} {json.dumps(settings[name])}" if name in settings else f"no {name}"


@contextmanager
def _told(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise StoreError(
            f"can't write {path}: {error.strerror}",
            hint="nothing that was written is lost; hint it, and the same command goes on",
        ) from error
