"""The file of the run store: its schema, the migrations of older ones, and what its errors mean.

Each migration leads from one schema to the next. Its statements skip rows that have the new form
already, since some stores were written while a migration was being developed.
"""

import logging
import os
import sqlite3
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from flashedge.errors import StoreError

log = logging.getLogger(__name__)

APPLICATION_ID = 0x464C4544  # "FLED": marks the file as ours
_SCHEMA = """
CREATE TABLE runs (
  id TEXT PRIMARY KEY, status TEXT NOT NULL, spec TEXT NOT NULL,
  plan TEXT NOT NULL DEFAULT '{}', created_at REAL NOT NULL,
  finished_at REAL, answer TEXT, tree_tokens INTEGER, total_s REAL, result TEXT, error TEXT
) STRICT;
CREATE INDEX runs_by_age ON runs (created_at, id);
CREATE TABLE events (
  run_id TEXT NOT NULL REFERENCES runs (id) ON DELETE CASCADE,
  seq INTEGER NOT NULL, event TEXT NOT NULL, PRIMARY KEY (run_id, seq)
) STRICT;
"""


def _build_rename(column: str, table: str, old: str, new: str) -> str:
    """Build the statement that renames a field of the JSON objects in a column."""
    renamed = f"json_remove(json_set({column}, '$.{new}', {column} -> '$.{old}'), '$.{old}')"
    has_old = f"json_type({column}, '$.{old}') IS NOT NULL"
    return f"UPDATE {table} SET {column} = {renamed} WHERE {has_old}"


_DECIDED = "spec ->> '$.early_exit_source' IN ('calibration', 'defaults')"
_POLICY = ", ".join(
    f"'$.early_exit.{name}'" for name in ("policy", "detect", "thresholds", "max_tokens", "curve")
)

MIGRATIONS: tuple[tuple[str, ...], ...] = (
    (
        _build_rename("error", "runs", "mend", "hint"),
        _build_rename("event", "events", "mend", "hint"),
        _build_rename("event", "events", "knob", "progress"),
    ),
    (  # the request as it came, and in a column of its own what was decided about it
        "ALTER TABLE runs ADD COLUMN plan TEXT NOT NULL DEFAULT '{}'",
        "UPDATE runs SET plan = json_object('early_exit', spec -> '$.early_exit',"
        " 'early_exit_source', spec ->> '$.early_exit_source',"
        " 'early_exit_note', spec ->> '$.early_exit_note')",
        f"UPDATE runs SET spec = json_remove(spec, {_POLICY}) WHERE {_DECIDED}",
        "UPDATE runs SET spec = json_set(spec, '$.early_exit', json('{}'))"
        f" WHERE {_DECIDED} AND spec ->> '$.early_exit' IS NULL",
        "UPDATE runs SET spec = json_remove(spec, '$.early_exit_source', '$.early_exit_note')",
    ),
)
"""The statements from schema 1 to 2, from 2 to 3, and so on."""

SCHEMA_VERSION = 1 + len(MIGRATIONS)


def open_schema(db: sqlite3.Connection, path: Path) -> None:
    """Create the schema in an empty file, or migrate an older one. Raises StoreError for any other
    file, and sqlite3.Error."""
    version = db.execute("PRAGMA user_version").fetchone()[0]
    application = db.execute("PRAGMA application_id").fetchone()[0]
    tables = db.execute("SELECT count(*) FROM sqlite_schema").fetchone()[0]
    if application != APPLICATION_ID and (tables or version or application):
        raise StoreError(
            f"{path} is a database of another program",
            hint="move it away, or set FLASHEDGE_HOME to another folder",
        )
    if version > SCHEMA_VERSION:
        raise StoreError(
            f"{path} was written by a newer FlashEdge"
            f" (schema {version}, this one knows {SCHEMA_VERSION})",
            hint="update FlashEdge, or move the file away to start with an empty store",
        )
    if not tables:
        db.execute("PRAGMA auto_vacuum = INCREMENTAL")  # has no effect after the first table
    db.execute("PRAGMA journal_mode = WAL").fetchall()
    db.execute("PRAGMA synchronous = NORMAL")
    db.execute("PRAGMA foreign_keys = ON")
    db.execute(f"PRAGMA journal_size_limit = {16 << 20}").fetchall()  # a long WAL is cut to this
    if tables and version < SCHEMA_VERSION:
        log.info("migrating the run store from schema %d to %d", version, SCHEMA_VERSION)
    db.execute("BEGIN IMMEDIATE")  # also fails now if the file is not writable
    if not tables:
        for statement in filter(str.strip, _SCHEMA.split(";")):
            db.execute(statement)
        db.execute(f"PRAGMA application_id = {APPLICATION_ID}")
        db.execute(f"PRAGMA user_version = {SCHEMA_VERSION}")
    elif version < SCHEMA_VERSION:
        for statements in MIGRATIONS[version - 1 :]:
            for statement in statements:
                db.execute(statement)
        db.execute(f"PRAGMA user_version = {SCHEMA_VERSION}")
    db.execute("COMMIT")


def make_private(path: Path) -> None:
    """Create the folder and the file for their owner only, since runs hold people's problems. Those
    that exist keep their permissions. Raises StoreError."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        if not path.exists():
            os.close(os.open(path, os.O_CREAT | os.O_RDWR, 0o600))
    except OSError as error:
        raise StoreError(
            f"the run store {path} can't be created: {error.strerror}",
            hint=_PERMISSION.format(folder=path.parent),
        ) from error


@contextmanager
def translate_errors(path: Path) -> Iterator[None]:
    """Raise StoreError for the sqlite3 errors of the block."""
    try:
        yield
    except sqlite3.Error as error:
        primary = getattr(error, "sqlite_errorcode", 0) & 0xFF
        what, hint = _MEANING.get(primary, (f"failed: {error}", None))
        raise StoreError(
            f"the run store {path} {what}", hint=hint and hint.format(folder=path.parent)
        ) from error


_PERMISSION = "give this user write permission on {folder}, or set FLASHEDGE_HOME elsewhere"
_SPACE = "free some space on the disk of {folder}; until then runs go on without being stored"
_DAMAGE = "move it away to start with an empty store"
_BUSY = "another program holds it; stop that one and try again"
_MEANING: Mapping[int, tuple[str, str | None]] = {
    sqlite3.SQLITE_FULL: ("can't be written: the disk is full", _SPACE),
    sqlite3.SQLITE_IOERR: ("can't be read or written: the disk is full or failing", _SPACE),
    sqlite3.SQLITE_READONLY: ("can't be written: it is read-only", _PERMISSION),
    sqlite3.SQLITE_PERM: ("can't be opened: no permission", _PERMISSION),
    sqlite3.SQLITE_CANTOPEN: ("can't be opened", _PERMISSION),
    sqlite3.SQLITE_NOTADB: ("is not an SQLite database", _DAMAGE),
    sqlite3.SQLITE_CORRUPT: ("is damaged", _DAMAGE),
    sqlite3.SQLITE_BUSY: ("is locked", _BUSY),
    sqlite3.SQLITE_LOCKED: ("is locked", _BUSY),
    sqlite3.SQLITE_CONSTRAINT: ("already has that entry, or lacks its run", None),
    sqlite3.SQLITE_TOOBIG: ("can't hold an entry that large", None),
}
