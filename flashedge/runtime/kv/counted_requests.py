"""Requests outside any run, of which the KV manager of their pair knows while they are open."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager

from flashedge.engine.plain_requests import (
    PlainAsk,
    PlainRequest,
    PlainRequests,
    PlainRequestsProxy,
)
from flashedge.runtime.kv.manager import KvManager
from flashedge.scheduling.kv.ownership import EngineRole


class CountedRequests(PlainRequestsProxy):
    """Implements `engine.plain_requests.PlainRequests` by those of the daemon."""

    def __init__(self, plain: PlainRequests, manager: KvManager) -> None:
        super().__init__(plain)
        self._manager = manager

    @contextmanager
    def open(self, ask: PlainAsk, abort: Callable[[], Awaitable[None]]) -> Iterator[PlainRequest]:
        """See `engine.plain_requests`."""
        role = EngineRole.VERIFIER if ask.is_score else EngineRole.GENERATOR
        with self._plain.open(ask, abort) as request, self._manager.count_plain_request(role):
            yield request
