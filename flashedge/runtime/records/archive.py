"""Runs that are over, read from the store through the same interface as live ones."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from flashedge.errors import FlashEdgeError, RunInterrupted
from flashedge.events import Event
from flashedge.runtime.records.event_log import EventLog
from flashedge.runtime.records.store import RunStore, StoredRun
from flashedge.runtime.request.spec import RunSpec
from flashedge.runtime.run import Cancelled, Run

SUMMARY_CHARS = 200
_ENDS: Mapping[str, type[FlashEdgeError]] = MappingProxyType(
    {"cancelled": Cancelled, "interrupted": RunInterrupted}
)


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSummary:
    """One line of a listing. Times are unix seconds, total_s seconds."""

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
    )


class ArchivedRun:
    """A run of the store: finished, failed, cancelled, or interrupted by a daemon's death."""

    position = None

    def __init__(self, stored: StoredRun, store: RunStore) -> None:
        self.id = stored.id
        self.status = stored.status
        self._stored = stored
        self._store = store

    @property
    def spec(self) -> RunSpec:
        return RunSpec.from_json(self._stored.spec)

    async def events(self, after: int = 0) -> AsyncIterator[tuple[int, Event]]:
        """What the store holds; an interrupted run's log has no terminal event."""
        for item in EventLog(self._store.events(self.id)).kept(after):
            yield item

    async def result(self) -> dict[str, Any]:
        """Raises what the run ended with if it did not finish."""
        if self._stored.result is not None:
            return dict(self._stored.result)
        told = self._stored.error or {}
        kind = _ENDS.get(self.status, FlashEdgeError)
        message = told.get("message", f"run {self.id} was {self.status}")
        error = kind(message, hint=told.get("hint"))
        if kind is FlashEdgeError:
            error.code = told.get("code", kind.code)
        raise error

    def cancel(self, reason: str) -> None:
        """It is over: nothing to do."""

    def object(self) -> dict[str, Any]:
        if self._stored.result is not None:
            return {**self._stored.result, "stored": True}
        spec = self._stored.spec
        return {
            "id": self.id,
            "status": self.status,
            "position": None,
            "pair": spec["pair"],
            "strategy": spec["strategy"],
            "n": spec["n"],
            "seed": spec["seed"],
            "error": dict(self._stored.error) if self._stored.error else None,
            "stored": True,
        }
