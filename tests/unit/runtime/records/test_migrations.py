"""Stores that an earlier FlashEdge wrote: they open, show, replay and export.

`store_schema_1.sqlite.gz` was written by the code of commit 0c93182, with simulated engines: runs
of five strategies, one of them cut by its deadline, one cancelled, one failed, and one that a kill
interrupted.
"""

from __future__ import annotations

import gzip
import json
import sqlite3
from pathlib import Path

import pytest

from flashedge.cli.solve.html_page import page
from flashedge.client.run_fold import fold
from flashedge.client.run_view import RunView
from flashedge.events import CertaintyUpdated, RunFailed
from flashedge.runtime.records.schema import SCHEMA_VERSION
from flashedge.runtime.records.store import RunStore
from flashedge.runtime.request.early_exit import ExitOptions
from flashedge.runtime.request.plan import Plan
from flashedge.runtime.run import ArchivedRun, build_summary
from tests.support.paths import DATA


@pytest.fixture
def old(tmp_path: Path) -> Path:
    path = tmp_path / "runs.sqlite"
    path.write_bytes(gzip.decompress((DATA / "store_schema_1.sqlite.gz").read_bytes()))
    return path


def test_all_runs_of_an_old_store_can_be_shown_and_replayed(old: Path) -> None:
    store = RunStore(old)
    store.interrupt_unfinished()
    runs = store.list(limit=100)
    statuses = ["cancelled", "failed", *["finished"] * 6, "interrupted"]
    assert sorted(run.status for run in runs) == statuses
    for run in runs:
        stored = store.get(run.id)
        assert stored is not None
        assert build_summary(stored, None).problem == "How many are left?"
        archived = ArchivedRun(stored, store)
        assert archived.plan.request.problem.messages[0].content == "How many are left?"
        assert archived.object()["status"] == run.status
        view = fold(RunView(id=run.id), tuple(store.events(run.id)))
        if run.status == "finished":
            assert view.result is not None
            assert len(view.nodes) == len(view.result["tree"]["nodes"])
            assert "How many are left?" in page(view, archived.object(), "How many are left?")
    store.close()


def test_renamed_fields_keep_their_values(old: Path) -> None:
    with sqlite3.connect(old) as db:
        before = [
            json.loads(text)["knob"]
            for (text,) in db.execute(
                "SELECT event FROM events WHERE event ->> '$.type' = 'CertaintyUpdated'"
                " ORDER BY run_id, seq"
            )
        ]
    store = RunStore(old)
    found = [
        event.progress
        for run_id in sorted(run.id for run in store.list(limit=100))
        for _, event in store.events(run_id)
        if isinstance(event, CertaintyUpdated)
    ]
    assert found == before
    assert max(before) > 1
    failed = store.list(status="failed")[0]
    assert failed.error == {
        "message": "the verifier engine died",
        "code": "engine_dead",
        "hint": "see `flashedge logs`",
    }
    assert store.events(failed.id)[-1][1] == RunFailed(
        error="the verifier engine died", code="engine_dead", hint="see `flashedge logs`"
    )
    cancelled = store.list(status="cancelled")[0]
    assert cancelled.error is not None
    assert cancelled.error["hint"] is None
    store.close()


def test_what_was_asked_is_told_from_what_was_decided(old: Path) -> None:
    """Of an early exit that the daemon chose, a request had said at most when to give up."""
    chosen = {"policy": "static", "detect": 2, "thresholds": {"entropy": 0.5}, "curve": []}
    with sqlite3.connect(old) as db:
        rows = [(i, json.loads(spec)) for i, spec in db.execute("SELECT id, spec FROM runs")]
        (first, *_), (second, whole) = rows[0], rows[1]
        for run_id, exits, source in (
            (first, {**chosen, "give_up_after": 9, "give_up_below": 0.2}, "calibration"),
            (second, None, "calibration"),
        ):
            spec = {**whole, "early_exit": exits, "early_exit_source": source}
            db.execute("UPDATE runs SET spec = ? WHERE id = ?", (json.dumps(spec), run_id))
    store = RunStore(old)
    runs = {}
    for run_id, _ in rows:
        stored = store.get(run_id)
        assert stored is not None
        runs[run_id] = ArchivedRun(stored, store)
    assert runs[first].request.early_exit == ExitOptions(give_up_after=9, give_up_below=0.2)
    assert runs[first].plan.request.early_exit == ExitOptions.from_json(
        {**chosen, "give_up_after": 9, "give_up_below": 0.2}
    )
    assert runs[second].request.early_exit == ExitOptions()
    assert runs[second].plan.request.early_exit is None
    for run_id, spec in rows[2:]:
        assert runs[run_id].plan == Plan.from_json(spec)
        by_request = spec["early_exit_source"] == "request"
        assert by_request == bool(getattr(runs[run_id].request.early_exit, "policy", None))
    store.close()


def test_a_store_is_migrated_once(old: Path) -> None:
    RunStore(old).close()
    with sqlite3.connect(old) as db:
        assert db.execute("PRAGMA user_version").fetchone()[0] == SCHEMA_VERSION
        before = db.execute("SELECT * FROM events ORDER BY run_id, seq").fetchall()
    RunStore(old).close()
    with sqlite3.connect(old) as db:
        assert db.execute("SELECT * FROM events ORDER BY run_id, seq").fetchall() == before


def test_a_failed_migration_changes_nothing(old: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from flashedge.errors import StoreError
    from flashedge.runtime.records import schema

    broken = (*schema.MIGRATIONS[0], "UPDATE missing SET a = 1")
    monkeypatch.setattr(schema, "MIGRATIONS", (broken,))
    before = sqlite3.connect(old).execute("SELECT * FROM events ORDER BY run_id, seq").fetchall()
    with pytest.raises(StoreError, match="no such table"):
        RunStore(old)
    with sqlite3.connect(old) as db:
        assert db.execute("PRAGMA user_version").fetchone()[0] == 1
        assert db.execute("SELECT * FROM events ORDER BY run_id, seq").fetchall() == before
    monkeypatch.undo()
    assert RunStore(old).list(status="failed")[0].error is not None
