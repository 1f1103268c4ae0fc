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


_DECIDED = "spec ->> '$.early_exit_source' IN ('calibration', 'defaults')"
_POLICY = ", ".join(
    f"'$.early_exit.{name}'" for name in ("policy", "detect", "thresholds", "max_tokens", "curve")
)

MIGRATIONS: tuple[tuple[str, ...], ...] = (
    (
        _rename("error", "runs", "mend", "hint"),
        _rename("event", "events", "mend", "hint"),
        _rename("event", "events", "knob", "progress"),
    ),
    (  # the request as it came, and beside it what was decided about it
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


def migrate(db: sqlite3.Connection, version: int) -> None:
    """Run the migrations that a store of this version needs. The caller opened a transaction."""
    for statements in MIGRATIONS[version - 1 :]:
        for statement in statements:
            db.execute(statement)
    db.execute(f"PRAGMA user_version = {SCHEMA_VERSION}")
