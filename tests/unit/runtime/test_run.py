"""One run: its states, its log, its result, and a store that fails under it."""

import asyncio
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from flashedge.errors import DaemonStopping, EngineDead, FlashEdgeError, StoreError
from flashedge.events import TERMINAL, Event, NodesMarked, Progress, RunCancelled, RunFailed
from flashedge.runtime.records.store import RunStore
from flashedge.runtime.request.plan import Plan
from flashedge.runtime.run import WRITE_S, Cancelled, Run, RunStatus
from flashedge.scheduling.programs.estimates import RunEstimate
from flashedge.types import NodeId
from tests.support.made_run import build_step
from tests.support.runtime_rig import BEAM

RESULT = {"id": "r", "answer": "2", "usage": {"tree_tokens": 7}, "timing": {"total_s": 0.5}}
OUTLOOK = RunEstimate(position=3, starts_in_s=12.5, median_tokens=80.0, tail_tokens=120.0)
STEP = NodesMarked(status="active", nodes=(NodeId(0),))
DEAD = EngineDead("the engine is gone", hint="start it")
S = RunStatus

MOVES: Mapping[str, Callable[[Run], Any]] = {
    "start": Run.mark_started,
    "finish": lambda run: run.mark_finished(dict(RESULT)),
    "fail": lambda run: run.mark_failed(DEAD),
    "cancel": Run.mark_cancelled,
}
LEGAL = {
    S.QUEUED: {"start": S.RUNNING, "fail": S.FAILED, "cancel": S.CANCELLED},
    S.RUNNING: {"finish": S.FINISHED, "fail": S.FAILED, "cancel": S.CANCELLED},
}
WAY_TO = {
    S.QUEUED: (),
    S.RUNNING: ("start",),
    S.FINISHED: ("start", "finish"),
    S.FAILED: ("start", "fail"),
    S.CANCELLED: ("cancel",),
}


class FailingStore(RunStore):
    """Fails from its `fails_at`-th write on (1 is `create`), as a full disk does."""

    def __init__(self, path: Path, fails_at: int) -> None:
        super().__init__(path)
        self.fails_at, self.writes = fails_at, 0

    def _write(self) -> None:
        self.writes += 1
        if self.writes >= self.fails_at:
            raise StoreError("the disk is full", hint="free some space")

    def create(self, *args: Any) -> None:
        self._write()
        super().create(*args)

    def append(self, *args: Any) -> None:
        self._write()
        super().append(*args)

    def finish(self, *args: Any, **kwargs: Any) -> None:
        self._write()
        super().finish(*args, **kwargs)


def make(store: RunStore, seen: list[Event] | None = None) -> Run:
    observe = (lambda event: None) if seen is None else seen.append
    return Run("r", BEAM, Plan(request=BEAM), store, lambda: OUTLOOK, observe)


def in_state(store: RunStore, status: RunStatus) -> Run:
    run = make(store)
    for move in WAY_TO[status]:
        MOVES[move](run)
    assert run.status is status
    return run


def look(run: Run) -> tuple[object, ...]:
    return run.status, run.error, run.object(), run._log.read()


# ---------------------------------------------------------------- states


@pytest.mark.parametrize("move", MOVES)
@pytest.mark.parametrize("status", WAY_TO)
def test_illegal_moves_change_nothing(store: RunStore, status: RunStatus, move: str) -> None:
    run = in_state(store, status)
    before, kept = look(run), store.events("r")
    to = LEGAL.get(status, {}).get(move)
    if to is None:
        with pytest.raises(ValueError, match=r"can.t go from"):
            MOVES[move](run)
        assert (look(run), store.events("r")) == (before, kept)
    else:
        MOVES[move](run)
        assert run.status is to
        assert store.get("r").status == to  # type: ignore[union-attr]


async def test_a_finished_run_has_its_result(
    store: RunStore, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", logger="flashedge.runtime.run")
    seen: list[Event] = []
    run = make(store, seen)
    outlook = {"position": 3, "starts_in_s": 12.5, "median_tokens": 80.0, "tail_tokens": 120.0}
    asked = {"pair": "bundled", "strategy": "beam", "n": 8, "seed": 7}
    now = {"status": "queued", "tree_tokens": 0, "error": None, "stored": True}
    assert run.object() == {"id": "r", **asked, **outlook, **now}
    waiting = asyncio.create_task(run.result())
    assert run.mark_started() >= 0
    run.emit(STEP)
    run.emit(build_step(1, "", tokens=5))
    run.emit(build_step(2, "", tokens=5))
    assert run.object()["tree_tokens"] == 10
    run.emit(Progress(tokens=((NodeId(1), 4),)))
    run.mark_finished(dict(RESULT))
    assert await waiting == await run.result() == RESULT
    assert run.object() == {**RESULT, "stored": True}
    events = [item async for item in run.events()]
    assert [number for number, _ in events] == [1, 2, 3, 4, 5]
    assert [type(events[at][1]).__name__ for at in (0, -1)] == ["RunStarted", "RunFinished"]
    assert [e for e in seen if not isinstance(e, Progress)] == [event for _, event in events]
    assert store.events("r") == events
    started, ended = caplog.messages
    assert started.startswith("run r started: beam, n=")
    assert ended == "run r finished: 0.5 s, 7 tokens"


async def test_events_of_a_level_are_stored_and_sent_together(store: RunStore) -> None:
    """Stored first. An event that waits to be written is not lost when the run ends."""
    run = in_state(store, S.RUNNING)
    follower = run.events()
    assert (await anext(follower))[0] == 1
    for _ in range(3):
        run.emit(STEP)
    assert [number for number, _ in store.events("r")] == [1]
    for number in (2, 3, 4):
        assert (await anext(follower))[0] == number
        assert [number for number, _ in store.events("r")] == [1, 2, 3, 4]
    run.emit(STEP)
    run.mark_finished(dict(RESULT))
    assert [number for number, _ in store.events("r")] == [1, 2, 3, 4, 5, 6]
    assert [number async for number, _ in follower] == [5, 6]


async def test_requests_to_the_engines_go_out_before_events_are_written(
    store: RunStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, order = in_state(store, S.RUNNING), list[str]()
    loop = asyncio.get_running_loop()
    loop.call_later(WRITE_S, loop.call_soon, order.append, "sent")
    monkeypatch.setattr(store, "append", lambda *args: order.append("written"))
    run.emit(STEP)
    await asyncio.sleep(2 * WRITE_S)
    assert order == ["sent", "written"]


async def test_a_failed_run_has_its_error(
    store: RunStore, caplog: pytest.LogCaptureFixture
) -> None:
    run = in_state(store, S.FAILED)
    assert caplog.messages[-1].endswith("s: the engine is gone")
    with pytest.raises(EngineDead) as e:
        await run.result()
    assert e.value is DEAD
    told = {"message": "the engine is gone", "code": "engine_dead", "hint": "start it"}
    assert run.object()["error"] == told
    assert store.get("r").error == told  # type: ignore[union-attr]
    failed = RunFailed(error=told["message"], code=told["code"], hint=told["hint"])
    assert [event async for _, event in run.events(1)] == [failed]


@pytest.mark.parametrize("reason", [None, "the client left"])
async def test_a_cancelled_run_says_why(
    store: RunStore, caplog: pytest.LogCaptureFixture, reason: str | None
) -> None:
    caplog.set_level("INFO", logger="flashedge.runtime.run")
    run = in_state(store, S.RUNNING)
    if reason:
        run.cancel(reason)
        run.cancel("another reason, too late")
    run.mark_cancelled()
    told = reason or "the daemon stopped"
    kind = Cancelled if reason else DaemonStopping
    with pytest.raises(kind, match=f"the run was cancelled: {told}"):
        await run.result()
    assert [event async for _, event in run.events(1)] == [RunCancelled(reason=told)]
    assert caplog.messages[-1].endswith(f"s: {told}")


async def test_cancel_ends_the_task_once(store: RunStore) -> None:
    run = in_state(store, S.RUNNING)
    run.task = asyncio.create_task(asyncio.sleep(60))
    run.cancel("enough")
    await asyncio.wait({run.task})
    assert run.task.cancelled()
    over = in_state(RunStore(store.path.with_name("other.sqlite")), S.FINISHED)
    over.task = asyncio.create_task(asyncio.sleep(0, "untouched"))
    over.cancel("too late")
    assert await over.task == "untouched"
    assert over._cancel_reason is None


@pytest.mark.parametrize("status", [S.FINISHED, S.FAILED, S.CANCELLED])
async def test_a_run_ends_even_if_a_listener_raises(store: RunStore, status: RunStatus) -> None:
    """A defect of whoever watches must not leave waiting clients behind."""

    def observe(event: Event) -> None:
        if isinstance(event, TERMINAL):
            raise ZeroDivisionError

    run = Run("r", BEAM, Plan(request=BEAM), store, lambda: RunEstimate(), observe)
    *before, last = WAY_TO[status]
    for move in before:
        MOVES[move](run)
    with pytest.raises(ZeroDivisionError):
        MOVES[last](run)
    assert run.status is status
    async with asyncio.timeout(5):
        assert [n async for n, _ in run.events()][-1] == run._log.last
        if status is S.FINISHED:
            assert await run.result() == RESULT
        else:
            with pytest.raises(FlashEdgeError):
                await run.result()


# ---------------------------------------------------------------- a failing store


@pytest.mark.parametrize("fails_at", range(1, 6))
async def test_a_run_goes_on_when_its_store_fails(
    tmp_path: Path, fails_at: int, caplog: pytest.LogCaptureFixture
) -> None:
    """Four writes: create, RunStarted, a step with RunFinished, finish. The step was waiting to be
    stored when the run ended, and nothing is left for its turn."""
    store = FailingStore(tmp_path / "runs.sqlite", fails_at)
    run = make(store)
    run.mark_started()
    run.emit(STEP)
    run.mark_finished(dict(RESULT))
    await asyncio.sleep(2 * WRITE_S)
    failed = fails_at <= 4
    assert run.stored is not failed
    assert await run.result() == RESULT
    assert run.object() == {**RESULT, "stored": run.stored}
    assert [number async for number, _ in run.events()] == [1, 2, 3]
    assert len(store.events("r")) == (0, 0, 1, 3, 3)[fails_at - 1]
    assert store.writes == min(fails_at, 4), "after its first failure it is left alone"
    assert len([r for r in caplog.records if "not stored for now" in r.message]) == failed
    store.close()


@pytest.mark.parametrize("fails_at", range(1, 5))
@pytest.mark.parametrize("end", ["finish", "fail", "cancel"])
async def test_a_run_is_stored_once_that_works(tmp_path: Path, fails_at: int, end: str) -> None:
    store = FailingStore(tmp_path / "runs.sqlite", fails_at)
    run = make(store)
    run.mark_started()
    run.emit(STEP)
    run.save()
    assert not run.stored or fails_at > 2, "it is not over yet"
    MOVES[end](run)
    run.save()
    assert not run.stored, "the store still fails"
    store.fails_at = 10**9
    run.save()
    assert run.stored
    kept = store.get("r")
    assert kept.status == LEGAL[S.RUNNING][end]
    assert kept.result == (RESULT if end == "finish" else None)
    assert kept.error == run.object().get("error")
    assert kept.created_at == run.created_at
    assert kept.finished_at is not None
    assert store.events("r") == [item async for item in run.events()]
    store.close()
