"""Runs, live or stored: their id, status, events and result."""

import asyncio
import dataclasses
import logging
import re
import secrets
import time
from collections.abc import AsyncGenerator, Callable, Mapping
from enum import StrEnum
from typing import Any

from flashedge.errors import (
    DaemonStopping,
    FlashEdgeError,
    RequestError,
    RunInterrupted,
    StoreError,
)
from flashedge.events import (
    TERMINAL,
    Event,
    Progress,
    RunCancelled,
    RunFailed,
    RunFinished,
    RunStarted,
    StepCompleted,
)
from flashedge.runtime.records.event_log import EventLog
from flashedge.runtime.records.store import RunStore, StoredRun
from flashedge.runtime.request.plan import Plan
from flashedge.runtime.request.validation import Request
from flashedge.scheduling.programs.estimates import RunEstimate

log = logging.getLogger(__name__)


class RunStatus(StrEnum):
    QUEUED = "queued"
    RUNNING = "running"
    FINISHED = "finished"
    FAILED = "failed"
    CANCELLED = "cancelled"
    INTERRUPTED = "interrupted"
    """The daemon died during the run."""


_NEXT: Mapping[RunStatus, frozenset[RunStatus]] = {
    RunStatus.QUEUED: frozenset({RunStatus.RUNNING, RunStatus.CANCELLED, RunStatus.FAILED}),
    RunStatus.RUNNING: frozenset({RunStatus.FINISHED, RunStatus.FAILED, RunStatus.CANCELLED}),
}
_CHOSEN_ID = re.compile(r"run-[a-z0-9][a-z0-9-]{10,58}[a-z0-9]")


def create_run_id() -> str:
    return f"run-{secrets.token_hex(6)}"


def check_run_id(run_id: str) -> None:
    """Raises RequestError for an id that a client may not choose."""
    if not _CHOSEN_ID.fullmatch(run_id):
        need = "it must be run- and then 12 to 60 of a-z, 0-9 and -, but not - at either end"
        raise RequestError(f"id is {run_id[:80]!r}; {need}", param="id")


WRITE_S = 0.02
"""Seconds between batches of events that are stored and sent, since a level ends with hundreds.
Chosen by hand: a tenth makes many transactions of them, ten times as much shows in a stream."""
SUMMARY_CHARS = 200
"""Characters of the problem that a listing shows."""
SHOWN_FIELDS = ("pair", "strategy", "n", "seed")
"""Fields of the request that the object of a run without a result has."""
STOPPED = "the daemon stopped"
"""The reason of a run that ended with its daemon."""


class Cancelled(RequestError):
    """The run was cancelled by its client."""

    code = "cancelled"
    http_status = 499


class Run:
    """A live run. Every change of state is an event, which is stored before a follower receives it.
    If the store fails, the run goes on without it, and `save` stores the run later."""

    def __init__(
        self,
        run_id: str,
        request: Request,
        plan: Plan,
        store: RunStore,
        find_estimate: Callable[[], RunEstimate],
        observe: Callable[[Event], None],
    ) -> None:
        """request: as it came. observe: receives each event at once."""
        self.id = run_id
        self.request = request
        self.plan = plan
        self.created_at = time.time()
        self.status = RunStatus.QUEUED
        self.error: FlashEdgeError | None = None
        self.stored = True
        """Whether the store has worked so far, or has caught up."""
        self.task: asyncio.Task[None] | None = None
        self._queued_at = time.monotonic()
        self._store = store
        self._find_estimate = find_estimate
        self._observe = observe
        self._log = EventLog()
        self._unwritten: list[Event] = []
        self._tree_tokens = 0
        self._result: dict[str, Any] | None = None
        self._over = asyncio.Event()
        self._ended_at: float | None = None
        self._cancel_reason: str | None = None
        self._is_created = False
        self._num_stored = 0
        """Events of the log that the store has."""
        self._write()

    @property
    def estimate(self) -> RunEstimate:
        """The run's place in the queue, when it starts, and how long its paths will be."""
        return self._find_estimate()

    def events(self, after: int = 0) -> AsyncGenerator[tuple[int, Event]]:
        return self._log.follow(after)

    async def result(self) -> dict[str, Any]:
        """Wait until the run is over. Raises the run's error, or Cancelled."""
        await self._over.wait()
        if self.error is not None:
            raise self.error
        assert self._result is not None, "a finished run has a result"
        return self._result

    def cancel(self, reason: str) -> None:
        """Cancel the run, whether it waits or runs. Does nothing once it is over."""
        if self.status not in _NEXT:
            return
        self._cancel_reason = self._cancel_reason or reason
        if self.task is not None:
            self.task.cancel()

    def object(self) -> dict[str, Any]:
        """Build the object of `GET /v1/runs/{id}`: the result, or what is known without one."""
        if self._result is not None:
            return {**self._result, "stored": self.stored}
        shown = {name: getattr(self.request, name) for name in SHOWN_FIELDS}
        if self.status in _NEXT:
            shown["tree_tokens"] = self._tree_tokens
        return _describe(self, shown, self._error_object(), stored=self.stored)

    def emit(self, event: Event) -> None:
        """Add an event. It is stored and then sent to followers after at most `WRITE_S`, or at once
        if the run starts or ends with it."""
        self._unwritten.append(event)
        if isinstance(event, (RunStarted, *TERMINAL)):
            self._write_events()
        elif len(self._unwritten) == 1:
            loop = asyncio.get_running_loop()
            loop.call_later(WRITE_S, loop.call_soon, self._write_events)  # engine requests go first
        if isinstance(event, StepCompleted):
            self._tree_tokens += len(event.token_ids)
        self._observe(event)

    def _write_events(self) -> None:
        events, self._unwritten = self._unwritten, []
        if kept := [event for event in events if not isinstance(event, Progress)]:
            self._write(*kept)
        for event in events:
            self._log.append(event)

    def mark_started(self) -> float:
        """Leave the queue. Returns the seconds spent in it."""
        waited = self._age_s
        self._move(RunStatus.RUNNING)
        self.emit(RunStarted(config=self.plan.to_json(), queue_s=waited))
        search = f"{self.request.strategy}, n={self.request.n}"
        log.info("run %s started: %s (waited %.1f s)", self.id, search, waited)
        return waited

    def mark_finished(self, result: dict[str, Any]) -> None:
        self._move(RunStatus.FINISHED)
        self._result = result
        self._end(RunFinished(result=result))
        tokens, total_s = result["usage"]["tree_tokens"], result["timing"]["total_s"]
        log.info("run %s finished: %.1f s, %d tokens", self.id, total_s, tokens)

    def mark_failed(self, error: FlashEdgeError) -> None:
        self._move(RunStatus.FAILED)
        self.error = error
        self._end(RunFailed(error=str(error), code=error.code, hint=error.hint))
        log.warning("run %s failed after %.1f s: %s", self.id, self._age_s, error)

    def mark_cancelled(self) -> None:
        self._move(RunStatus.CANCELLED)
        reason = self._cancel_reason or STOPPED
        kind = DaemonStopping if reason == STOPPED else Cancelled
        self.error = kind(f"the run was cancelled: {reason}")
        self._end(RunCancelled(reason=reason))
        log.info("run %s was cancelled after %.1f s: %s", self.id, self._age_s, reason)

    @property
    def _age_s(self) -> float:
        return time.monotonic() - self._queued_at

    def _end(self, event: Event) -> None:
        try:
            self.emit(event)
            self._ended_at = time.time()
            self._write()
        finally:
            self._over.set()

    def _write(self, *new: Event) -> None:
        """Store the run's state and the events `new`, which the log does not have yet. Does nothing
        once the store has failed."""
        if not self.stored:
            return
        try:
            self._store_missing(*new)
        except StoreError as error:
            self.stored = False
            log.error("run %s is not stored for now: %s", self.id, error.line)

    def _store_missing(self, *new: Event) -> None:
        """Store what the store lacks: the run, events, the end. Raises StoreError."""
        if not self._is_created:
            spec, decisions = self.request.to_json(), self.plan.list_decisions()
            self._store.create(self.id, spec, self.created_at, decisions)
            self._is_created = True
        missing = [*(event for _, event in self._log.read(self._num_stored)), *new]
        if missing:
            self._store.append(self.id, self._num_stored + 1, *missing)
            self._num_stored += len(missing)
        if self._ended_at is not None:
            error = self._error_object()
            self._store.finish(self.id, str(self.status), self._result, error, self._ended_at)

    def save(self) -> None:
        """Store a run that is over and not wholly stored, if the store works again."""
        if self.stored or not self._over.is_set():
            return
        try:
            self._store_missing()
        except StoreError:
            return  # its first failure was logged
        self.stored = True
        log.info("run %s is stored after all", self.id)

    def _error_object(self) -> dict[str, Any] | None:
        if self.error is None:
            return None
        return {"message": str(self.error), "code": self.error.code, "hint": self.error.hint}

    def _move(self, to: RunStatus) -> None:
        if to not in _NEXT.get(self.status, ()):
            raise ValueError(f"run {self.id} can't go from {self.status} to {to}")
        self.status = to


def summarize(stored: StoredRun, live: Run | None) -> dict[str, Any]:
    """Describe a run for a listing, as plain JSON values. Both dates are unix seconds."""
    spec = stored.spec
    return {
        "id": stored.id,
        "status": str(live.status) if live else stored.status,
        "created_at": stored.created_at,
        "finished_at": stored.finished_at,
        **{name: spec[name] for name in ("strategy", "n", "pair")},
        "problem": spec["problem"]["messages"][-1]["content"][:SUMMARY_CHARS],
        **{name: getattr(stored, name) for name in ("answer", "tree_tokens", "total_s")},
        **dataclasses.asdict(live.estimate if live else RunEstimate()),
    }


class ArchivedRun:
    """A stored run: finished, failed, cancelled, or interrupted by the daemon's death."""

    estimate = RunEstimate()

    def __init__(self, stored: StoredRun, store: RunStore) -> None:
        self.id = stored.id
        self.status = stored.status
        self._stored = stored
        self._store = store

    @property
    def request(self) -> Request:
        return Request.from_json(self._stored.spec)

    @property
    def plan(self) -> Plan:
        return Plan.from_json({**self._stored.spec, **self._stored.plan})

    async def events(self, after: int = 0) -> AsyncGenerator[tuple[int, Event]]:
        """Yield the stored events. The log of an interrupted run has no terminal event."""
        for item in self._store.events(self.id, after):
            yield item

    async def result(self) -> dict[str, Any]:
        """Return the result. Raises the error with which a run without one ended."""
        if self._stored.result is not None:
            return dict(self._stored.result)
        stored = self._stored.error or {}
        kinds = {"cancelled": Cancelled, "interrupted": RunInterrupted}
        kind = kinds.get(self.status, FlashEdgeError)
        message = stored.get("message", f"run {self.id} was {self.status}")
        error = kind(message, hint=stored.get("hint"))
        if kind is FlashEdgeError:
            error.code = stored.get("code", kind.code)
        raise error

    def cancel(self, reason: str) -> None:
        """Does nothing: the run is over."""

    def object(self) -> dict[str, Any]:
        if self._stored.result is not None:
            return {**self._stored.result, "stored": True}
        asked = {name: self._stored.spec[name] for name in SHOWN_FIELDS}
        error = dict(self._stored.error) if self._stored.error else None
        return _describe(self, asked, error, stored=True)


RunHandle = Run | ArchivedRun


def _describe(
    run: RunHandle, fields: Mapping[str, Any], error: dict[str, Any] | None, *, stored: bool
) -> dict[str, Any]:
    """Build the object of a run without a result."""
    known = {"id": run.id, "status": str(run.status), **dataclasses.asdict(run.estimate)}
    return {**known, **fields, "error": error, "stored": stored}
