"""Runs on disk, in one SQLite file. An event survives a killed daemon once `append` has returned.

The journal is WAL with synchronous=NORMAL: when a call returns, the operating system has the
commit. A power cut may lose the last commits, never the file. Each call may raise StoreError. A
later call then succeeds once the cause is gone.
"""

import json
import sqlite3
import threading
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from flashedge.errors import NotFound, StoreError
from flashedge.events import (
    Event,
    Progress,
    RunCancelled,
    RunFailed,
    RunFinished,
    RunStarted,
    from_json,
    to_json,
)
from flashedge.runtime.records.schema import make_private, open_schema, translate_errors
from flashedge.types import NodeId

FILE = "runs.sqlite"
UNFINISHED = ("queued", "running")
LOCK_TIMEOUT_S = 2.0
"""Seconds to wait while another program holds the file. Chosen by hand: calls block the event loop
meanwhile, and a write of another program may take longer than a tenth."""
_ROW = "id, status, spec, created_at, finished_at, answer, tree_tokens, total_s, error"
_COUNT_TOKENS = (
    "SELECT coalesce(sum(json_array_length(event, '$.token_ids')), 0) FROM events"
    " WHERE run_id = ? AND event ->> '$.type' = 'StepCompleted'"
)
_LEVELS_AND_STEPS = (
    "SELECT event ->> '$.parent', event -> '$.children', event ->> '$.node',"
    " json_array_length(event, '$.token_ids'), event ->> '$.finish' FROM events"
    " WHERE run_id = ? AND event ->> '$.type' IN ('NodesExpanded', 'StepCompleted') ORDER BY seq"
)
"""In the row of an event, the columns of the other type of event are NULL."""
_MENTIONS = (
    "(holds(:text, (SELECT CAST(group_concat(value ->> '$.content', char(10)) AS BLOB)"
    " FROM json_each(spec, '$.problem.messages')))"
    " OR holds(:text, answer) OR holds(:text, CAST(result ->> '$.text' AS BLOB)))"
)
"""Whether a run's messages, its answer or its chosen path hold `:text`, which is case-folded."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredRun:
    """A run as the store holds it. `created_at` and `finished_at` are unix seconds; `total_s` is
    without the queue. What is unknown, or not known yet, is None."""

    id: str
    status: str
    spec: Mapping[str, Any]
    """The request as it came."""
    created_at: float
    finished_at: float | None
    answer: str | None
    tree_tokens: int | None
    """Committed tokens: of the result, or else counted in the events when the run ended."""
    total_s: float | None
    error: Mapping[str, Any] | None
    """`message`, `code` and `hint` of a run that ended without a result."""
    plan: Mapping[str, Any] = field(default_factory=dict)
    """What the daemon decided (`Plan.list_decisions`). Listings leave it and the result out."""
    result: Mapping[str, Any] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RunOutline:
    """The shape of a run's tree. Reading it is fast, since the tokens themselves are left out."""

    prompt_tokens: int | None
    """None for a run without a result."""
    levels: tuple[tuple[NodeId, tuple[NodeId, ...]], ...]
    """(parent, children) of nodes that began to generate together."""
    steps: tuple[tuple[NodeId, int, str], ...]
    """(node, tokens, finish) of each complete node. finish: a value of FinishReason."""


class RunStore:
    """All runs of one daemon. Calls may come from any thread."""

    def __init__(self, path: Path) -> None:
        """Open or create the file. Raises StoreError for one that can't be written, is damaged, is
        of another program or has a newer schema."""
        self.path = path
        self._lock = threading.Lock()
        make_private(path)
        with translate_errors(path):
            self._db = sqlite3.connect(
                path, timeout=LOCK_TIMEOUT_S, isolation_level=None, check_same_thread=False
            )
        try:
            with translate_errors(path):
                open_schema(self._db, path)
        except StoreError:
            self._db.close()
            raise

    def close(self) -> None:
        with self._lock:
            self._db.close()

    def create(
        self,
        run_id: str,
        spec: Mapping[str, Any],
        created_at: float,
        plan: Mapping[str, Any] | None = None,
    ) -> None:
        """spec, plan: see `StoredRun`."""
        with self._transaction() as db:
            db.execute(
                "INSERT INTO runs (id, status, spec, plan, created_at)"
                " VALUES (?, 'queued', ?, ?, ?)",
                (run_id, json.dumps(spec), json.dumps(plan or {}), created_at),
            )

    def append(self, run_id: str, seq: int, *events: Event) -> None:
        """Store events numbered from `seq` on, all or none, committed before it returns. Raises
        ValueError for Progress, which is never stored."""
        if any(isinstance(event, Progress) for event in events):
            raise ValueError("Progress events are not stored")
        rows = [
            (run_id, at, json.dumps(to_json(event), separators=(",", ":")))
            for at, event in enumerate(events, seq)
        ]
        with self._transaction() as db:
            db.executemany("INSERT INTO events (run_id, seq, event) VALUES (?, ?, ?)", rows)
            if any(isinstance(event, RunStarted) for event in events):
                db.execute("UPDATE runs SET status = 'running' WHERE id = ?", (run_id,))

    def finish(
        self,
        run_id: str,
        status: str,
        result: Mapping[str, Any] | None,
        error: Mapping[str, Any] | None,
        finished_at: float | None,
    ) -> None:
        """Record the end of a run. finished_at: unix seconds, None if unknown. Raises NotFound."""
        found = result or {}
        with self._transaction() as db:
            tokens = (found.get("usage") or {}).get("tree_tokens")
            if result is None:
                tokens = db.execute(_COUNT_TOKENS, (run_id,)).fetchone()[0]
            changed = db.execute(
                "UPDATE runs SET status = ?, finished_at = ?, answer = ?, tree_tokens = ?,"
                " total_s = ?, result = ?, error = ? WHERE id = ?",
                (
                    status,
                    finished_at,
                    found.get("answer"),
                    tokens,
                    (found.get("timing") or {}).get("total_s"),
                    None if result is None else json.dumps(result),
                    None if error is None else json.dumps(error),
                    run_id,
                ),
            ).rowcount
        if not changed:
            raise _build_not_found(run_id)

    def interrupt_unfinished(self) -> list[str]:
        """End the runs that a crash left open, by their stored terminal event or else as
        "interrupted". Returns their ids."""
        rows = self._read(
            "SELECT id, (SELECT event FROM events WHERE run_id = runs.id"
            " ORDER BY seq DESC LIMIT 1) FROM runs WHERE status IN (?, ?) ORDER BY rowid",
            *UNFINISHED,
        )
        for run_id, last in rows:
            status, result, error = _read_ending(from_json(json.loads(last)) if last else None)
            self.finish(run_id, status, result, error, None)
        return [run_id for run_id, _ in rows]

    def delete(self, run_id: str) -> None:
        """Delete a run and its events, and free their space. Raises NotFound."""
        with self._transaction() as db:
            deleted = db.execute("DELETE FROM runs WHERE id = ?", (run_id,)).rowcount
        if not deleted:
            raise _build_not_found(run_id)
        self._read("PRAGMA incremental_vacuum")

    def get(self, run_id: str) -> StoredRun | None:
        found = self._read(f"SELECT {_ROW}, plan, result FROM runs WHERE id = ?", run_id)
        return _parse_row(found[0]) if found else None

    def events(self, run_id: str, after: int = 0) -> list[tuple[int, Event]]:
        """Read the events with seq > after, in order. Empty for an unknown run."""
        query = "SELECT seq, event FROM events WHERE run_id = ? AND seq > ? ORDER BY seq"
        rows = self._read(query, run_id, after)
        return [(seq, from_json(json.loads(text))) for seq, text in rows]

    def outline(self, run_id: str) -> RunOutline:
        """Read the shape of a run's tree. It is empty for an unknown run."""
        query = "SELECT result ->> '$.usage.prompt_tokens' FROM runs WHERE id = ?"
        found = self._read(query, run_id)
        rows = self._read(_LEVELS_AND_STEPS, run_id)
        levels = tuple(
            (parent, tuple(child[0] for child in json.loads(children)))
            for parent, children, *_ in rows
            if children is not None
        )
        steps = tuple((row[2], row[3], row[4]) for row in rows if row[1] is None)
        tokens = found[0][0] if found else None
        return RunOutline(prompt_tokens=tokens, levels=levels, steps=steps)

    def list_runs(
        self,
        *,
        limit: int = 50,
        before: str | None = None,
        status: str | None = None,
        text: str | None = None,
    ) -> list[StoredRun]:
        """List runs without their results, in the order of their creation, newest first.

        before: the id of a run; only older ones are listed. text: only runs whose messages, answer
        or chosen path hold it are listed, in upper or lower case. This search may read the whole
        store, so it has a connection of its own and other threads don't wait for it. Raises
        NotFound when `before` is unknown.
        """
        where, values = ["1"], dict[str, Any](limit=limit, status=status)
        if status is not None:
            where.append("status = :status")
        if before is not None:
            at = self._read("SELECT rowid FROM runs WHERE id = ?", before)
            if not at:
                raise _build_not_found(before)
            where.append("rowid < :before")
            values["before"] = at[0][0]
        if text is not None:
            where.append(_MENTIONS)
            values["text"] = text.casefold()
        query = f"SELECT {_ROW}, '{{}}', NULL FROM runs WHERE {' AND '.join(where)}"
        with self._open_database() if text is None else self._open_another() as db:
            rows = db.execute(f"{query} ORDER BY rowid DESC LIMIT :limit", values).fetchall()
        return [_parse_row(row) for row in rows]

    def count(self) -> int:
        return int(self._read("SELECT count(*) FROM runs")[0][0])

    def measure_bytes(self) -> int:
        """Measure the bytes of the file that are in use."""
        found = self._read(
            "SELECT (page_count - freelist_count) * page_size"
            " FROM pragma_page_count, pragma_freelist_count, pragma_page_size"
        )
        return int(found[0][0])

    def list_oldest(self, ended_before: float | None = None, limit: int = 20) -> list[str]:
        """List up to `limit` runs that are over, in the order in which they ended. With
        `ended_before` (unix seconds), only those that ended before it."""
        rows = self._read(
            "SELECT id, coalesce(finished_at, created_at) AS ended FROM runs"
            " WHERE status NOT IN (?, ?) AND ended < ? ORDER BY ended, id LIMIT ?",
            *UNFINISHED,
            float("inf") if ended_before is None else ended_before,
            limit,
        )
        return [run_id for run_id, _ in rows]

    def _read(self, query: str, *values: Any) -> list[tuple[Any, ...]]:
        with self._open_database() as db:
            return db.execute(query, values).fetchall()

    @contextmanager
    def _transaction(self) -> Iterator[sqlite3.Connection]:
        with self._open_database() as db:
            db.execute("BEGIN IMMEDIATE")
            try:
                yield db
                db.execute("COMMIT")
            except BaseException:
                if db.in_transaction:  # a full disk may have rolled it back already
                    db.execute("ROLLBACK")
                raise

    @contextmanager
    def _open_database(self) -> Iterator[sqlite3.Connection]:
        with self._lock, translate_errors(self.path):
            yield self._db

    @contextmanager
    def _open_another(self) -> Iterator[sqlite3.Connection]:
        with (
            translate_errors(self.path),
            closing(sqlite3.connect(self.path, timeout=LOCK_TIMEOUT_S, isolation_level=None)) as db,
        ):
            db.create_function("holds", 2, _hold, deterministic=True)
            yield db


def _hold(wanted: str, text: str | bytes | None) -> bool:
    """Whether a text holds `wanted`, which is case-folded. Bytes may be no UTF-8, since what models
    and users write can have half a surrogate pair."""
    if isinstance(text, bytes):
        text = text.decode("utf-8", "replace")
    return text is not None and wanted in text.casefold()


def _parse_row(row: tuple[Any, ...]) -> StoredRun:
    fields = dict(zip((*_ROW.split(", "), "plan", "result"), row, strict=True))
    for name in ("spec", "error", "plan", "result"):
        fields[name] = None if fields[name] is None else json.loads(fields[name])
    return StoredRun(**fields)


def _read_ending(
    last: Event | None,
) -> tuple[str, Mapping[str, Any] | None, Mapping[str, Any] | None]:
    """Derive (status, result, error) from a run's last event."""
    match last:
        case RunFinished(result=result):
            return "finished", result, None
        case RunFailed(error=message, code=code, hint=hint):
            return "failed", None, {"message": message, "code": code, "hint": hint}
        case RunCancelled(reason=reason):
            return "cancelled", None, {"message": reason, "code": "cancelled", "hint": None}
        case _:
            message = "the daemon stopped before the run was over"
            return "interrupted", None, {"message": message, "code": "interrupted", "hint": None}


def _build_not_found(run_id: str) -> NotFound:
    return NotFound(f"no run {run_id!r}", hint="`flashedge runs ls` lists them", param="id")
