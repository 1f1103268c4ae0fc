"""A file of what is finished, a line each, so that a second call goes on where the first ended."""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Callable, Hashable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Generic, Protocol, Self, TypeVar

from flashedge.errors import Conflict, StoreError


class Record(Protocol):
    """Something finished."""

    def to_json(self) -> Mapping[str, Any]: ...


K = TypeVar("K", bound=Hashable)
R = TypeVar("R", bound=Record)


class RecordFile(Generic[K, R]):
    """JSON lines: the settings, then the records. One writer at a time.

    Use as a context manager. A last line that a crash cut off is dropped. records: by key, in the
    order in which they were kept.
    """

    def __init__(
        self,
        path: Path,
        settings: Mapping[str, Any],
        parse: Callable[[Mapping[str, Any]], R],
        key: Callable[[R], K],
    ) -> None:
        """Opens or makes the file. settings: JSON values that make two records comparable; parse:
        the inverse of `to_json`, raises KeyError, TypeError, ValueError.

        Raises Conflict when the file was made with other settings or is being written, StoreError
        when it can't be read or written.
        """
        self.path = path
        self.records: dict[K, R] = {}
        self._key = key
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._file = path.open("a+b")
        except OSError as error:
            raise _unusable(path, error) from error
        try:
            self._lock()
            self._read(settings, parse)
        except BaseException:
            self._file.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        self._file.close()

    def append(self, record: R) -> None:
        """Keep what is finished. Raises StoreError."""
        self._write(record.to_json())
        self.records[self._key(record)] = record

    # ------------------------------------------------------------ inner

    def _lock(self) -> None:
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise Conflict(
                f"another process writes {self.path}",
                hint="wait for it, or give another --output",
            ) from error

    def _read(self, settings: Mapping[str, Any], parse: Callable[[Mapping[str, Any]], R]) -> None:
        wanted = json.loads(json.dumps(settings))
        try:
            self._file.seek(0)
            data = self._file.read()
            whole = data[: data.rfind(b"\n") + 1]
            if len(whole) < len(data):
                self._file.truncate(len(whole))
            lines = [json.loads(line) for line in whole.splitlines()]
            if not lines:
                self._write({"settings": wanted})
                return
            made = lines[0]["settings"]
            found = [parse(line) for line in lines[1:]]
        except OSError as error:
            raise _unusable(self.path, error) from error
        except (ValueError, KeyError, TypeError) as error:
            raise StoreError(
                f"{self.path} is no file of finished work",
                hint="move it away, or give another --output",
            ) from error
        other = [name for name in wanted if made.get(name) != wanted[name]]
        if other:
            raise Conflict(
                f"{self.path} was made with other settings ({', '.join(other)})",
                hint="give another --output, or delete it to begin again",
            )
        self.records = {self._key(record): record for record in found}

    def _write(self, line: Mapping[str, Any]) -> None:
        try:
            self._file.write(json.dumps(line, ensure_ascii=False).encode() + b"\n")
            self._file.flush()
            os.fsync(self._file.fileno())
        except OSError as error:
            raise _unusable(self.path, error) from error


def _unusable(path: Path, error: OSError) -> StoreError:
    return StoreError(f"can't use {path}: {error.strerror or error}", hint="give another --output")
