"""Runs that are over, read from the store with the interface of live runs."""

from __future__ import annotations

import dataclasses
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from flashedge.errors import FlashEdgeError, RunInterrupted
from flashedge.events import Event
from flashedge.runtime.records.event_log import EventLog
from flashedge.runtime.records.store import RunStore, StoredRun
from flashedge.runtime.request.plan import Plan
from flashedge.runtime.request.request import Request
from flashedge.runtime.run import Cancelled, Run
from flashedge.scheduling.programs.estimates import RunEstimate

SUMMARY_CHARS = 200
_ENDS: Mapping[str, type[FlashEdgeError]] = MappingProxyType(
    {"cancelled": Cancelled, "interrupted": RunInterrupted}
)


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSummary:
    """One line of a listing. Times are unix seconds. The last fields are of `RunEstimate`."""

    id: str
    status: str
    created_at: float
    finished_at: float | None
    strategy: str
    n: int
    pair: str
    problem: str
    answer: str | None
    tree_tokens: int | None
    total_s: float | None
    position: int | None = None
    starts_in_s: float | None = None
    median_tokens: float | None = None
    tail_tokens: float | None = None


def build_summary(stored: StoredRun, live: Run | None) -> RunSummary:
    messages = stored.spec["problem"]["messages"]
    return RunSummary(
        id=stored.id,
        status=str(live.status) if live else stored.status,
        created_at=stored.created_at,
        finished_at=stored.finished_at,
        strategy=stored.spec["strategy"],
        n=stored.spec["n"],
        pair=stored.spec["pair"],
        problem=messages[-1]["content"][:SUMMARY_CHARS],
        answer=stored.answer,
        tree_tokens=stored.tree_tokens,
        total_s=stored.total_s,
        **(dataclasses.asdict(live.estimate) if live else {}),
    )


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

    async def events(self, after: int = 0) -> AsyncIterator[tuple[int, Event]]:
        """The stored events. The log of an interrupted run has no terminal event."""
        for item in EventLog(self._store.events(self.id)).read(after):
            yield item

    async def result(self) -> dict[str, Any]:
        """Raises the error that the run ended with."""
        if self._stored.result is not None:
            return dict(self._stored.result)
        stored = self._stored.error or {}
        kind = _ENDS.get(self.status, FlashEdgeError)
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
        spec = self._stored.spec
        return {
            "id": self.id,
            "status": self.status,
            **dataclasses.asdict(self.estimate),
            "pair": spec["pair"],
            "strategy": spec["strategy"],
            "n": spec["n"],
            "seed": spec["seed"],
            "error": dict(self._stored.error) if self._stored.error else None,
            "stored": True,
        }
