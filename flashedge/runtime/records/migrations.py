"""Brings a run store of an earlier schema to the present one, without losing a run.

A migration changes a schema to the next. Its statements leave alone what has the new form already:
stores were also written between two changes of one migration.
"""

from __future__ import annotations

import sqlite3


def _rename(column: str, table: str, old: str, new: str) -> str:
    """A statement that renames a key of the JSON objects in a column."""
    renamed = f"json_remove(json_set({column}, '$.{new}', {column} -> '$.{old}'), '$.{old}')"
    has_old = f"json_type({column}, '$.{old}') IS NOT NULL"
    return f"UPDATE {table} SET {column} = {renamed} WHERE {has_old}"


MIGRATIONS: tuple[tuple[str, ...], ...] = (
    (
        _rename("error", "runs", "mend", "hint"),
        _rename("event", "events", "mend", "hint"),
        _rename("event", "events", "knob", "progress"),
    ),
)
"""The statements from schema 1 to 2, from 2 to 3, and so on."""

SCHEMA_VERSION = 1 + len(MIGRATIONS)


def migrate(db: sqlite3.Connection, version: int) -> None:
    """Run the migrations that a store of this version needs. The caller opened a transaction."""
    for statements in MIGRATIONS[version - 1 :]:
        for statement in statements:
            db.execute(statement)
    db.execute(f"PRAGMA user_version = {SCHEMA_VERSION}")
