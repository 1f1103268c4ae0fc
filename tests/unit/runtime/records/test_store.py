"""The run store: what is told is kept, and every way the disk can fail has its own words."""

import os
import re
import sqlite3
import subprocess
import sys
import tempfile
import textwrap
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

import pytest

from flashedge import events
from flashedge.errors import NotFound, StoreError
from flashedge.events import Progress, RunFinished
from flashedge.runtime.records import store as run_store
from flashedge.runtime.records.schema import translate_errors
from flashedge.runtime.records.store import RunStore
from flashedge.runtime.request.validation import Request
from flashedge.types import MAX_SEED, Problem
from tests.support.made_run import build_result, build_start, build_step

SPEC = Request(problem=Problem.from_text("1 + 1?"), pair="bundled").to_json()
RESULT = build_result()
START = build_start(SPEC, [("é\n\n", 0.1)], queue_s=0.25, seed=MAX_SEED)
EVENTS = (*(e for e in START if not isinstance(e, Progress)), RunFinished(result=RESULT))


def _filled(store: RunStore, run_id: str = "r1", at: float = 1.0) -> None:
    store.create(run_id, SPEC, at)
    for seq, event in enumerate(EVENTS, 1):
        store.append(run_id, seq, event)
    store.finish(run_id, "finished", RESULT, None, at + 1)


def test_a_run_comes_back_as_it_was_from_a_private_file(store: RunStore) -> None:
    _filled(store)
    assert store.path.stat().st_mode & 0o777 == 0o600
    assert store.path.parent.stat().st_mode & 0o077 == 0
    run = store.get("r1")
    assert (run.status, run.result, run.finished_at) == ("finished", RESULT, 2.0)
    assert (run.answer, run.tree_tokens, run.total_s) == ("2", 80, 0.2)
    assert Request.from_json(run.spec) == Request.from_json(SPEC)
    # EVENTS[0] and the stored one differ only in list/tuple inside `config`, which is plain JSON
    stored = store.events("r1")
    assert [s for s, _ in stored] == [1, 2, 3, 4, 5]
    assert tuple(e for _, e in stored)[1:] == EVENTS[1:]
    assert store.events("r1", after=3) == stored[3:]


def test_listing_is_newest_first_and_pages(store: RunStore) -> None:
    for i in range(5):
        _filled(store, f"r{i}", at=float(i // 2))  # two share a time: the id breaks the tie
    store.create("open", SPEC, 9.0)
    everything = [r.id for r in store.list_runs()]
    assert everything == ["open", "r4", "r3", "r2", "r1", "r0"]
    pages, before = [], None
    while page := store.list_runs(limit=2, before=before):
        pages += [r.id for r in page]
        before = page[-1].id
    assert pages == everything
    assert [r.id for r in store.list_runs(status="queued")] == ["open"]
    assert store.list_runs()[1].result is None
    assert store.list_runs()[1].answer == "2"
    with pytest.raises(NotFound):
        store.list_runs(before="nobody")


def ask(store: RunStore, run_id: str, problem: str, answer: str | None, text: str) -> None:
    store.create(run_id, {**SPEC, "problem": {"messages": [{"content": problem}]}}, 1.0)
    if answer is not None:
        store.finish(run_id, "finished", {"answer": answer, "text": text, "usage": {}}, None, 2.0)


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("NUTS", ["r3", "r1"]),
        ("STRASSE", ["r2"]),
        ("ÄPFEL", ["r3"]),
        ("100%", ["r2"]),
        ("_", []),
        ("44", ["r1"]),
        ("day 2", ["r2"]),
        ("content", []),
        ("", ["r3", "r2", "r1"]),
    ],
)
def test_a_search_is_literal_in_any_case(store: RunStore, text: str, found: list[str]) -> None:
    ask(store, "r1", "Dan has 24 nuts", "44", "24 + 20")
    ask(store, "r2", "Which Straße? \n100%", "7", "Day 2: \ud83d")
    ask(store, "r3", "Half \udc9c of the nuts and äpfel", None, "")
    assert [run.id for run in store.list_runs(text=text)] == found


def test_a_search_pages_and_keeps_to_a_status(store: RunStore) -> None:
    for i in range(5):
        ask(store, f"r{i}", "nuts" if i % 2 == 0 else "bolts", "1" if i else None, "")
    assert [run.id for run in store.list_runs(text="nuts", limit=2)] == ["r4", "r2"]
    assert [run.id for run in store.list_runs(text="nuts", before="r2")] == ["r0"]
    assert [run.id for run in store.list_runs(text="nuts", status="finished")] == ["r4", "r2"]
    with pytest.raises(NotFound):
        store.list_runs(text="nuts", before="nobody")


def test_a_search_holds_up_no_other_call(store: RunStore, monkeypatch: pytest.MonkeyPatch) -> None:
    ask(store, "r1", "nuts", "1", "")
    in_search, written, hold = threading.Event(), threading.Event(), run_store._hold

    def hold_slowly(wanted: str, text: str | bytes | None) -> bool:
        in_search.set()
        assert written.wait(30)
        return hold(wanted, text)

    monkeypatch.setattr(run_store, "_hold", hold_slowly)
    with ThreadPoolExecutor(1) as pool:
        search = pool.submit(store.list_runs, text="nuts")
        assert in_search.wait(30)
        ask(store, "r2", "nuts", "1", "")
        written.set()
        assert [run.id for run in search.result()] == ["r1"]


def test_a_deleted_run_is_unknown(store: RunStore) -> None:
    _filled(store)
    store.create("r2", SPEC, 1.0)
    store.delete("r1")
    assert store.count() == 1
    assert store.get("r1") is None
    assert store.events("r1") == []
    for call in (lambda: store.delete("r1"), lambda: store.finish("r1", "failed", None, None, 1.0)):
        with pytest.raises(NotFound, match="r1"):
            call()


def test_progress_and_unknown_runs_are_not_stored(store: RunStore) -> None:
    store.create("r", SPEC, 1.0)
    with pytest.raises(ValueError, match="not stored"):
        store.append("r", 1, Progress(tokens=()))
    assert store.get("r").status == "queued"  # type: ignore[union-attr]
    store.append("r", 1, EVENTS[0])
    assert store.get("r").status == "running"  # type: ignore[union-attr]
    for taken_or_unknown in ("r", "nobody"):
        with pytest.raises(StoreError):
            store.append(taken_or_unknown, 1, EVENTS[1])
    assert store.events("r")[0][0] == 1


def test_open_runs_end_at_start_by_their_last_event(tmp_path: Path) -> None:
    store = RunStore(tmp_path / "runs.db")
    endings = {
        "queued": None,
        "running": EVENTS[0],
        "done": RunFinished(result=RESULT),
        "failed": events.RunFailed(error="engine died", code="engine_dead", hint="restart"),
        "gone": events.RunCancelled(reason="client disconnected"),
    }
    for run_id, event in endings.items():
        store.create(run_id, SPEC, 1.0)
        if event is not None:
            store.append(run_id, 1, event)
    _filled(store, "old")
    store.close()

    store = RunStore(tmp_path / "runs.db")
    assert set(store.interrupt_unfinished()) == set(endings)
    ended = {"done": "finished", "failed": "failed", "gone": "cancelled", "old": "finished"}
    expected = {"queued": "interrupted", "running": "interrupted", **ended}
    assert {run.id: run.status for run in store.list_runs()} == expected
    assert store.get("done").result == RESULT  # type: ignore[union-attr]
    assert store.get("failed").error["hint"] == "restart"  # type: ignore[union-attr,index]
    assert store.interrupt_unfinished() == []
    store.close()


def test_a_run_without_a_result_counts_the_tokens_of_its_steps(store: RunStore) -> None:
    store.create("never begun", SPEC, 1.0)
    for run_id in ("cancelled", "open"):
        store.create(run_id, SPEC, 1.0)
        for seq, event in enumerate(EVENTS[:-1], 1):
            store.append(run_id, seq, event)
    store.finish("cancelled", "cancelled", None, {"message": "by hand"}, 2.0)
    store.interrupt_unfinished()
    steps = [event for event in EVENTS if isinstance(event, events.StepCompleted)]
    expected = sum(len(step.token_ids) for step in steps)
    assert expected > 0
    counts = {run.id: run.tree_tokens for run in store.list_runs()}
    assert counts == {"cancelled": expected, "open": expected, "never begun": 0}


# ---------------------------------------------------------------- bad disks and files

_IMPORTS = """
import os, resource, signal, sys
from pathlib import Path
from flashedge.errors import StoreError
from flashedge.events import RunFailed
from flashedge.runtime.records.store import RunStore
"""


def run_python(code: str, *arguments: object) -> str:
    """Run it in a process of its own. Returns what it prints."""
    command = [sys.executable, "-c", _IMPORTS + textwrap.dedent(code), *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_full_database_says_so_and_works_again_with_room(store: RunStore) -> None:
    store.create("r", SPEC, 1.0)
    pages = store._db.execute("PRAGMA page_count").fetchone()[0]
    store._db.execute(f"PRAGMA max_page_count = {pages + 2}").fetchall()
    big = build_step(1, "x" * 20_000)
    store.append("r", 1, EVENTS[0])
    with pytest.raises(StoreError, match="full") as caught:
        store.append("r", 2, big)
    assert "free some space" in caught.value.line
    assert [s for s, _ in store.events("r")] == [1]  # what was told before is still there
    store._db.execute("PRAGMA max_page_count = 1000000").fetchall()
    store.append("r", 2, big)
    assert [s for s, _ in store.events("r")] == [1, 2]


_CAPPED = """
    store = RunStore(Path(sys.argv[1]))
    store.create("r", {}, 1.0)
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (400_000, resource.RLIM_INFINITY))
    seq, failures = 0, 0
    while failures < 2:
        try:
            store.append("r", seq + 1, RunFailed(error="x" * 5000, code="c"))
            seq += 1
        except StoreError as error:
            failures, line = failures + 1, error.line
    assert len(store.events("r")) == seq
    resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    store.append("r", seq + 1, RunFailed(error="after", code="c"))
    print(seq, line)
"""


def test_a_file_system_without_room_is_reported(tmp_path: Path) -> None:
    path = tmp_path / "runs.db"
    told, _, line = run_python(_CAPPED, path).partition(" ")
    assert "disk is full" in line
    assert int(told) > 10
    store = RunStore(path)
    assert len(store.events("r")) == int(told) + 1
    store.close()


_UNPRIVILEGED = """
    if os.geteuid() == 0:
        os.setgid(65534); os.setuid(65534)  # root may write anywhere
    for path in sys.argv[1:]:
        try:
            RunStore(Path(path)).create("r", {}, 1.0)
            print("opened", path)
        except StoreError as error:
            print(error.line)
"""


def test_no_permission_names_the_folder() -> None:
    with tempfile.TemporaryDirectory() as name:  # pytest's own folders are closed to others
        folder = Path(name)
        folder.chmod(0o755)
        (locked := folder / "locked").mkdir()
        RunStore(locked / "there.db").close()
        (locked / "there.db").chmod(0o444)
        locked.chmod(0o555)
        paths = [locked / "new.db", locked / "sub" / "new.db", locked / "there.db"]
        lines = run_python(_UNPRIVILEGED, *paths).splitlines()
        locked.chmod(0o755)
    assert len(lines) == 3
    assert all("write permission on" in line for line in lines), lines


NO_DATABASE = b"not a database at all, but long enough to be looked at\n" * 100


@pytest.mark.parametrize(
    ("before", "change", "said"),
    [
        (NO_DATABASE, "", "not an SQLite database; move it away"),
        (b"", "CREATE TABLE bookmarks (url)", "another program"),
        (None, "PRAGMA user_version = 99", "newer FlashEdge.*; update"),
    ],
)
def test_what_is_no_store_is_refused_and_left_alone(
    tmp_path: Path, before: bytes | None, change: str, said: str
) -> None:
    path = tmp_path / "runs.db"
    if before is None:
        RunStore(path).close()
    else:
        path.write_bytes(before)
    if change:
        with closing(sqlite3.connect(path)) as db:
            db.execute(change)
            db.commit()
    content = path.read_bytes()
    with pytest.raises(StoreError) as caught:
        RunStore(path)
    assert re.search(said, caught.value.line), caught.value.line
    assert path.read_bytes() == content


def test_a_folder_or_a_damaged_file_is_reported(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="can't be opened"):
        RunStore(tmp_path)
    path = tmp_path / "runs.db"
    store = RunStore(path)
    for i in range(20):
        _filled(store, f"r{i}")
    store.close()
    data = path.read_bytes()
    path.write_bytes(data[:4096] + os.urandom(len(data) - 4096))
    with pytest.raises(StoreError, match=r"damaged|not an SQLite"):
        RunStore(path).list_runs()


def test_a_locked_file_is_busy_not_broken(store: RunStore) -> None:
    store._db.execute("PRAGMA busy_timeout = 50")
    with closing(sqlite3.connect(store.path, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(StoreError, match="locked"):
            store.create("r", SPEC, 1.0)
    store.create("r", SPEC, 1.0)


def test_unknown_errors_keep_sqlites_words(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="what now"), translate_errors(tmp_path):
        raise sqlite3.OperationalError("what now")
