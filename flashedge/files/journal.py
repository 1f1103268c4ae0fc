"""A file of finished work, one record per line, so that a second call resumes the first."""

import fcntl
import json
import os
from collections.abc import Callable, Collection, Hashable, Iterator, Mapping
from contextlib import contextmanager, suppress
from io import FileIO
from pathlib import Path
from typing import Any, Generic, Protocol, Self, TypeVar

from flashedge.errors import ConfigError, Conflict, StoreError
from flashedge.literal import format_json

_HEADER_START = b'{"settings": '


class JournalRecord(Protocol):
    def to_json(self) -> Mapping[str, Any]: ...


K = TypeVar("K", bound=Hashable)
R = TypeVar("R", bound=JournalRecord)


class Journal(Generic[K, R]):
    """JSON lines: the settings if there are any, then one record per line. One process at a time
    writes it. Each record is on the disk before `append` returns. A last line that a crash left
    incomplete is removed. Use as a context manager, or call `close`."""

    def __init__(
        self,
        path: Path,
        settings: Mapping[str, Any] | None,
        parse: Callable[[Mapping[str, Any]], R],
        key: Callable[[R], K],
    ) -> None:
        """Create the file, or resume with the records that it holds.

        `settings` are JSON values that all its records share. They are the first line; None means a
        file without that line. `parse` is the inverse of `to_json` and raises KeyError, TypeError
        or ValueError. Raises Conflict when the file was made with other settings or another process
        writes it, ConfigError when it is damaged or no journal, StoreError when it can't be read or
        written.
        """
        self.path = path
        self.records: dict[K, R] = {}
        """By key, in the order in which they were appended."""
        self._parse = parse
        self._key = key
        self._header = b"" if settings is None else _encode({"settings": settings})
        with translate_os_errors(path):
            path.parent.mkdir(parents=True, exist_ok=True)
            self._file = open_locked(path)
            try:
                self._read(settings)
            except BaseException:
                self._file.close()
                raise

    def close(self) -> None:
        self._file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def append(self, record: R) -> None:
        """Write a record to the disk. Raises StoreError and keeps nothing if that fails."""
        with translate_os_errors(self.path):
            write_at_end(self._file, _encode(record.to_json()))
        self.records[self._key(record)] = record

    def drop(self, keys: Collection[K]) -> None:
        """Remove records, all at once or none. Raises StoreError."""
        kept = {k: record for k, record in self.records.items() if k not in keys}
        fresh_path = self.path.with_name(self.path.name + ".new")
        with translate_os_errors(self.path):
            fresh = open_locked(fresh_path)
            try:
                fresh.truncate(0)
                lines = b"".join(_encode(record.to_json()) for record in kept.values())
                write_at_end(fresh, self._header + lines)
                fresh_path.replace(self.path)
            except BaseException:
                fresh.close()
                raise
            self._file.close()
            self._file, self.records = fresh, kept
            sync_folder(self.path)

    def _read(self, settings: Mapping[str, Any] | None) -> None:
        self._file.seek(0)
        data = self._file.readall()
        if not data.startswith(_HEADER_START[: len(data)]) and settings is not None:
            raise self._build_foreign_error()
        *lines, rest = data.split(b"\n")
        if rest and _is_json(rest):  # only its line break is missing
            write_at_end(self._file, b"\n")
            lines.append(rest)
        elif rest:
            self._file.truncate(len(data) - len(rest))
        first = 0
        if settings is not None:
            if not lines:
                write_at_end(self._file, self._header)
                return
            if not _is_json(lines[0]):
                raise self._build_foreign_error()
            check_settings(self.path, json.loads(lines[0])["settings"], settings)
            first = 1
        for number, line in enumerate(lines[first:], start=first + 1):
            record: R | None = None
            with suppress(ValueError, KeyError, TypeError):
                record = self._parse(json.loads(line))
            if record is None or self._key(record) in self.records:
                raise ConfigError(
                    f"{self.path}, line {number} is damaged or repeats a record",
                    hint="remove the line, and the same command resumes",
                    param="output",
                )
            self.records[self._key(record)] = record

    def _build_foreign_error(self) -> ConfigError:
        return ConfigError(
            f"{self.path} is no file of finished work",
            hint="move it away, or give another --output",
            param="output",
        )


def open_locked(path: Path, guarded: Path | None = None) -> FileIO:
    """Open or create a file that one process at a time may write. `guarded` is the file that an
    error names instead. Raises OSError, and Conflict when another process has it."""
    file = path.open("a+b", buffering=0)
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        file.close()
        raise Conflict(
            f"another process writes {guarded or path}",
            hint="wait for it, or give another --output",
        ) from error
    except BaseException:
        file.close()
        raise
    return file


def check_settings(path: Path, made: Mapping[str, Any], wanted: Mapping[str, Any]) -> None:
    """Raises Conflict, which names a setting, if `made` and `wanted` differ. made: the settings
    with which `path` was made."""
    wanted = json.loads(json.dumps(wanted))
    for name in sorted({*made, *wanted}):
        if made.get(name) != wanted.get(name):
            raise Conflict(
                f"{path} was made with {_show(name, made)}, not {_show(name, wanted)}",
                hint="give the same input and options to resume, or another --output",
            )


def sync_folder(path: Path) -> None:
    """Make a new or renamed file survive a power cut. Raises OSError."""
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


@contextmanager
def translate_os_errors(path: Path) -> Iterator[None]:
    """Raises StoreError for an OSError of the block."""
    try:
        yield
    except OSError as error:
        raise StoreError(
            f"can't write {path}: {error.strerror or error}",
            hint="fix the cause, and the same command resumes, or give another --output",
        ) from error


def write_at_end(file: FileIO, data: bytes) -> None:
    """Write all of `data` to the disk, or nothing. Raises OSError."""
    end = file.seek(0, os.SEEK_END)
    try:
        written = 0
        while written < len(data):
            written += file.write(data[written:]) or 0
        os.fsync(file.fileno())
    except OSError:
        file.truncate(end)
        raise


def _encode(fields: Mapping[str, Any]) -> bytes:
    return format_json(fields).encode() + b"\n"


def _is_json(line: bytes) -> bool:
    with suppress(ValueError):
        json.loads(line)
        return True
    return False


def _show(name: str, settings: Mapping[str, Any]) -> str:
    return f"{name} {json.dumps(settings[name])}" if name in settings else f"no {name}"
