"""Finds runs by what was asked and answered: literal text in any case, also beyond ASCII."""

from __future__ import annotations

import sqlite3

MENTIONS = (
    "(holds(:text, (SELECT CAST(group_concat(value ->> '$.content', char(10)) AS BLOB)"
    " FROM json_each(spec, '$.problem.messages')))"
    " OR holds(:text, answer) OR holds(:text, CAST(result ->> '$.text' AS BLOB)))"
)
"""Whether a run's messages, its answer or its chosen path hold `:text`, which `fold` made."""


def fold(text: str) -> str:
    """The text without the difference of cases."""
    return text.casefold()


def add_search(db: sqlite3.Connection) -> None:
    """Let the statements of a connection have `MENTIONS`."""
    db.create_function("holds", 2, _hold, deterministic=True)


def _hold(wanted: str, text: str | bytes | None) -> bool:
    """Bytes may be no UTF-8: what models and users write can have half a surrogate pair."""
    if isinstance(text, bytes):
        text = text.decode("utf-8", "replace")
    return text is not None and wanted in fold(text)
