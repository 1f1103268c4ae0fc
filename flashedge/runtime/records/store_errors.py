"""Translates the errors of SQLite and the file system into messages for the user."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from flashedge.errors import StoreError


def make_private(path: Path) -> None:
    """Create the folder and the file readable by their owner only: runs hold people's problems."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        if not path.exists():
            os.close(os.open(path, os.O_CREAT | os.O_RDWR, 0o600))
    except OSError as error:
        raise StoreError(
            f"the run store {path} can't be created: {error.strerror}", hint=_permission_hint(path)
        ) from error


@contextmanager
def translate_errors(path: Path) -> Iterator[None]:
    """Raise StoreError for the sqlite3 errors of the block. The only place that does."""
    try:
        yield
    except sqlite3.Error as error:
        raise translate(error, path) from error


def translate(error: sqlite3.Error, path: Path) -> StoreError:
    """Build the StoreError that says what an SQLite error means, with a hint."""
    primary = getattr(error, "sqlite_errorcode", 0) & 0xFF
    what, hint = _MEANING.get(primary, (f"failed: {error}", lambda _: None))
    return StoreError(f"the run store {path} {what}", hint=hint(path))


def _permission_hint(path: Path) -> str:
    return f"give this user write permission on {path.parent}, or set FLASHEDGE_HOME elsewhere"


def _space_hint(path: Path) -> str:
    return (
        f"free some space on the disk of {path.parent}; until then runs go on without being stored"
    )


def _damage_hint(path: Path) -> str:
    return "move it away to start with an empty store"


def _busy_hint(path: Path) -> str:
    return "another program holds it; stop that one and try again"


_MEANING: Mapping[int, tuple[str, Callable[[Path], str | None]]] = {
    sqlite3.SQLITE_FULL: ("can't be written: the disk is full", _space_hint),
    sqlite3.SQLITE_IOERR: ("can't be read or written: the disk is full or failing", _space_hint),
    sqlite3.SQLITE_READONLY: ("can't be written: it is read-only", _permission_hint),
    sqlite3.SQLITE_PERM: ("can't be opened: no permission", _permission_hint),
    sqlite3.SQLITE_CANTOPEN: ("can't be opened", _permission_hint),
    sqlite3.SQLITE_NOTADB: ("is not an SQLite database", _damage_hint),
    sqlite3.SQLITE_CORRUPT: ("is damaged", _damage_hint),
    sqlite3.SQLITE_BUSY: ("is locked", _busy_hint),
    sqlite3.SQLITE_LOCKED: ("is locked", _busy_hint),
    sqlite3.SQLITE_CONSTRAINT: ("already has that entry, or not its run", lambda _: None),
    sqlite3.SQLITE_TOOBIG: ("can't hold an entry that large", lambda _: None),
}
