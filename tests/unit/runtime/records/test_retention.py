"""The store stays within its limits, and open runs stay."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from flashedge.config import Config, load_config
from flashedge.runtime.records import retention
from flashedge.runtime.records.retention import DAY_S, Retention
from flashedge.runtime.records.store import RunStore
from flashedge.runtime.request.validation import Request
from flashedge.types import Problem
from tests.support.made_run import build_result

SPEC = Request(problem=Problem.from_text("1 + 1?"), pair="bundled").to_json()


@pytest.fixture
def event_loop_policy() -> asyncio.AbstractEventLoopPolicy:
    """Threads know nothing of virtual time."""
    return asyncio.DefaultEventLoopPolicy()


@pytest.fixture
def store(tmp_path: Path) -> Iterator[RunStore]:
    opened = RunStore(tmp_path / "runs.db")
    yield opened
    opened.close()


def fill(store: RunStore, count: int, *, size: int = 0) -> None:
    store.create("open", SPEC, 0.0)
    for day in range(count):
        store.create(f"run-{day}", SPEC, day * DAY_S)
        result = build_result(text="x" * size)
        store.finish(f"run-{day}", "finished", result, None, day * DAY_S)


def names(store: RunStore) -> set[str]:
    return {run.id for run in store.list(limit=1000)}


def settings(tmp_path: Path, **values: object) -> Config:
    return load_config(values, environ={"FLASHEDGE_HOME": str(tmp_path)})


def test_runs_that_are_too_old_go(store: RunStore, tmp_path: Path) -> None:
    fill(store, 50)
    limiter = Retention(store, settings(tmp_path, keep_runs_days=7))
    assert limiter.remove_old(now=49 * DAY_S) == 42
    assert names(store) == {"open", *(f"run-{day}" for day in range(42, 50))}
    assert limiter.remove_old(now=49 * DAY_S) == 0


def test_by_default_no_run_is_too_old(store: RunStore, tmp_path: Path) -> None:
    fill(store, 5)
    assert Retention(store, settings(tmp_path)).remove_old(now=1e12) == 0


def test_the_oldest_go_while_all_take_too_much(store: RunStore, tmp_path: Path) -> None:
    fill(store, 30, size=100_000)
    before = store.measure_bytes()
    most = before // 3
    Retention(store, settings(tmp_path, keep_runs_gib=most / 2**30)).remove_old()
    kept = names(store)
    assert store.measure_bytes() <= most < before
    assert kept == {"open", *(f"run-{day}" for day in range(31 - len(kept), 30))}
    assert len(kept) > 5


def test_open_runs_stay_even_where_they_take_too_much(store: RunStore, tmp_path: Path) -> None:
    fill(store, 3)
    assert Retention(store, settings(tmp_path, keep_runs_gib=0)).remove_old() == 3
    assert names(store) == {"open"}


async def test_it_looks_now_and_then(
    store: RunStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    limiter = Retention(store, settings(tmp_path, keep_runs_gib=0))
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
    store: RunStore, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    limiter = Retention(store, settings(tmp_path))
    store.close()
    limiter.look()
    await limiter.stop()
    assert "old runs are not removed" in caplog.text
