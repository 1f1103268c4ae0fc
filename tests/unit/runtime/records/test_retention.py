"""The store stays within its limits, and open runs stay."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest

from flashedge.config import load_config
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


def fill(store: RunStore, count: int, *, size: int = 0) -> None:
    store.create("open", SPEC, 0.0)
    for day in range(count):
        store.create(f"run-{day}", SPEC, day * DAY_S)
        result = build_result(text="x" * size)
        store.finish(f"run-{day}", "finished", result, None, day * DAY_S)


def names(store: RunStore) -> set[str]:
    return {run.id for run in store.list(limit=1000)}


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
    assert limit(keep_runs_gib=0).remove_old() == 3
    assert names(store) == {"open"}


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
