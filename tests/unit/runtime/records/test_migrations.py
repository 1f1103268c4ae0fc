"""Stores that an earlier FlashEdge wrote: they open and migrate.

`store_schema_1.sqlite.gz` was written by the code of commit 0c93182, with simulated engines: runs
of five strategies, one of them cut by its deadline, one cancelled, one failed, and one that a kill
interrupted.
"""

import asyncio
import gzip
import json
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from flashedge.config import load_config
from flashedge.errors import StoreError
from flashedge.events import CertaintyUpdated, RunFailed
from flashedge.runtime.records import retention, schema
from flashedge.runtime.records.retention import DAY_S, Retention
from flashedge.runtime.records.schema import SCHEMA_VERSION
from flashedge.runtime.records.store import RunStore
from flashedge.runtime.request.early_exit import ExitOptions
from flashedge.runtime.request.plan import Plan
from flashedge.runtime.request.validation import Request
from flashedge.runtime.run import ArchivedRun
from flashedge.types import Problem
from tests.support.made_run import build_result
from tests.support.paths import DATA


@pytest.fixture
def old(tmp_path: Path) -> Path:
    path = tmp_path / "runs.sqlite"
    path.write_bytes(gzip.decompress((DATA / "store_schema_1.sqlite.gz").read_bytes()))
    return path


def test_renamed_fields_keep_their_values(old: Path) -> None:
    select = "SELECT event FROM events WHERE event ->> '$.type' = ? ORDER BY run_id, seq"
    with sqlite3.connect(old) as db:
        rows = db.execute(select, ("CertaintyUpdated",)).fetchall()
    before = [json.loads(text)["knob"] for (text,) in rows]
    store = RunStore(old)
    logs = [store.events(run_id) for run_id in sorted(run.id for run in store.list_runs(limit=100))]
    events = [event for log in logs for _, event in log]
    found = [event.progress for event in events if isinstance(event, CertaintyUpdated)]
    assert found == before
    assert max(before) > 1
    failed = store.list_runs(status="failed")[0]
    told = {"code": "engine_dead", "hint": "see `flashedge logs`"}
    assert failed.error == {"message": "the verifier engine died", **told}
    assert store.events(failed.id)[-1][1] == RunFailed(error="the verifier engine died", **told)
    cancelled = store.list_runs(status="cancelled")[0]
    assert cancelled.error["hint"] is None
    store.close()


def test_what_was_asked_is_told_from_what_was_decided(old: Path) -> None:
    """Of an early exit that the daemon chose, a request had said at most when to give up."""
    chosen = {"policy": "static", "detect": 2, "thresholds": {"entropy": 0.5}, "curve": []}
    chosen |= {"give_up_after": 9, "give_up_below": 0.2}
    with sqlite3.connect(old) as db:
        rows = [(i, json.loads(spec)) for i, spec in db.execute("SELECT id, spec FROM runs")]
        (first, *_), (second, whole) = rows[0], rows[1]
        for run_id, exits in ((first, chosen), (second, None)):
            spec = {**whole, "early_exit": exits, "early_exit_source": "calibration"}
            db.execute("UPDATE runs SET spec = ? WHERE id = ?", (json.dumps(spec), run_id))
    store = RunStore(old)
    runs = {}
    for run_id, _ in rows:
        stored = store.get(run_id)
        runs[run_id] = ArchivedRun(stored, store)
    assert runs[first].request.early_exit == ExitOptions(give_up_after=9, give_up_below=0.2)
    assert runs[first].plan.request.early_exit == ExitOptions.from_json(chosen)
    assert runs[second].request.early_exit == ExitOptions()
    assert runs[second].plan.request.early_exit is None
    for run_id, spec in rows[2:]:
        assert runs[run_id].plan == Plan.from_json(spec)
        by_request = spec["early_exit_source"] == "request"
        assert by_request == bool(getattr(runs[run_id].request.early_exit, "policy", None))
    store.close()


def read_events(path: Path) -> tuple[int, list[Any]]:
    """The version of the schema, and the stored events."""
    with closing(sqlite3.connect(path)) as db:
        events = db.execute("SELECT * FROM events ORDER BY run_id, seq").fetchall()
        return db.execute("PRAGMA user_version").fetchone()[0], events


def test_a_store_is_migrated_once(old: Path) -> None:
    RunStore(old).close()
    before = read_events(old)
    assert before[0] == SCHEMA_VERSION
    RunStore(old).close()
    assert read_events(old) == before


def test_a_failed_migration_changes_nothing(old: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    broken = (*schema.MIGRATIONS[0], "UPDATE missing SET a = 1")
    monkeypatch.setattr(schema, "MIGRATIONS", (broken,))
    before = read_events(old)
    with pytest.raises(StoreError, match="no such table"):
        RunStore(old)
    assert read_events(old) == before
    assert before[0] == 1
    monkeypatch.undo()
    assert RunStore(old).list_runs(status="failed")[0].error is not None


# ---------------------------------------------------------------- runs that are removed


SPEC = Request(problem=Problem.from_text("1 + 1?"), pair="bundled").to_json()


@pytest.fixture
def event_loop_policy() -> asyncio.AbstractEventLoopPolicy:
    """Threads know nothing of virtual time."""
    return asyncio.DefaultEventLoopPolicy()


def fill(store: RunStore, count: int, *, size: int = 0) -> None:
    store.create("open", SPEC, 0.0)
    for day in range(count):
        store.create(f"run-{day}", SPEC, day * DAY_S)
        result = build_result(text="x" * size)
        store.finish(f"run-{day}", "finished", result, None, day * DAY_S)


def names(store: RunStore) -> set[str]:
    return {run.id for run in store.list_runs(limit=1000)}


Limit = Callable[..., Retention]


@pytest.fixture
def limit(store: RunStore, tmp_path: Path) -> Limit:
    environ = {"FLASHEDGE_HOME": str(tmp_path)}
    return lambda **values: Retention(store, load_config(values, environ=environ))


def test_runs_that_are_too_old_go(store: RunStore, limit: Limit) -> None:
    fill(store, 50)
    assert limit().remove_old(now=1e12) == 0, "by default none is"
    limiter = limit(keep_runs_days=7)
    assert limiter.remove_old(now=49 * DAY_S) == 42
    assert names(store) == {"open", *(f"run-{day}" for day in range(42, 50))}
    assert limiter.remove_old(now=49 * DAY_S) == 0


def test_the_oldest_go_while_all_take_too_much(store: RunStore, limit: Limit) -> None:
    fill(store, 30, size=100_000)
    before = store.measure_bytes()
    most = before // 3
    limit(keep_runs_gib=most / 2**30).remove_old()
    kept = names(store)
    assert store.measure_bytes() <= most < before
    assert kept == {"open", *(f"run-{day}" for day in range(31 - len(kept), 30))}
    assert len(kept) > 5


def test_open_runs_stay_even_where_they_take_too_much(store: RunStore, limit: Limit) -> None:
    fill(store, 3)
    assert (limit(keep_runs_gib=0).remove_old(), names(store)) == (3, {"open"})


async def test_it_looks_now_and_then(
    store: RunStore, limit: Limit, monkeypatch: pytest.MonkeyPatch
) -> None:
    limiter = limit(keep_runs_gib=0)
    limiter.look()
    await asyncio.sleep(0.05)
    fill(store, 3)
    limiter.look()
    await asyncio.sleep(0.05)
    assert len(names(store)) == 4, "it has looked a moment ago"
    monkeypatch.setattr(retention, "EVERY_S", 0.0)
    limiter.look()
    await limiter.stop()
    assert names(store) == {"open"}


async def test_a_store_that_fails_is_no_end_of_the_daemon(
    store: RunStore, limit: Limit, caplog: pytest.LogCaptureFixture
) -> None:
    limiter = limit()
    store.close()
    limiter.look()
    await limiter.stop()
    assert "old runs are not removed" in caplog.text
