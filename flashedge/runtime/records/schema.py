"""The SQLite schema of the run store."""

from __future__ import annotations

import logging
import sqlite3
from pathlib import Path

from flashedge.errors import StoreError
from flashedge.runtime.records.migrations import SCHEMA_VERSION, migrate

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


def open_schema(db: sqlite3.Connection, path: Path) -> None:
    """Create the schema in an empty file, bring an older one up to date, refuse any other file."""
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
    db.execute(f"PRAGMA journal_size_limit = {16 << 20}").fetchall()
    if tables and version < SCHEMA_VERSION:
        log.info("the run store is brought from schema %d to %d", version, SCHEMA_VERSION)
    db.execute("BEGIN IMMEDIATE")  # also fails now if the file is not writable
    if not tables:
        for statement in filter(str.strip, _SCHEMA.split(";")):
            db.execute(statement)
        db.execute(f"PRAGMA application_id = {APPLICATION_ID}")
        db.execute(f"PRAGMA user_version = {SCHEMA_VERSION}")
    elif version < SCHEMA_VERSION:
        migrate(db, version)
    db.execute("COMMIT")
