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
from flashedge.runtime.records.archive import ArchivedRun, build_summary
from flashedge.runtime.records.migrations import SCHEMA_VERSION
from flashedge.runtime.records.store import RunStore
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
        assert archived.spec.problem.messages[0].content == "How many are left?"
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


def test_a_store_is_migrated_once(old: Path) -> None:
    RunStore(old).close()
    with sqlite3.connect(old) as db:
        assert db.execute("PRAGMA user_version").fetchone()[0] == SCHEMA_VERSION
        before = db.execute("SELECT * FROM events ORDER BY run_id, seq").fetchall()
    RunStore(old).close()
    with sqlite3.connect(old) as db:
        assert db.execute("SELECT * FROM events ORDER BY run_id, seq").fetchall() == before


def test_a_migration_that_fails_leaves_the_store_as_it_was(
    old: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from flashedge.errors import StoreError
    from flashedge.runtime.records import migrations

    broken = (*migrations.MIGRATIONS[0], "UPDATE missing SET a = 1")
    monkeypatch.setattr(migrations, "MIGRATIONS", (broken,))
    before = sqlite3.connect(old).execute("SELECT * FROM events ORDER BY run_id, seq").fetchall()
    with pytest.raises(StoreError, match="no such table"):
        RunStore(old)
    with sqlite3.connect(old) as db:
        assert db.execute("PRAGMA user_version").fetchone()[0] == 1
        assert db.execute("SELECT * FROM events ORDER BY run_id, seq").fetchall() == before
    monkeypatch.undo()
    assert RunStore(old).list(status="failed")[0].error is not None
