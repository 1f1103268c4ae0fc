"""The numbered event log of one run, with any number of followers."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

from flashedge.events import TERMINAL, Event, Progress


class EventLog:
    """Append-only. Numbers start at 1. Progress is passed on but not kept: it carries the number
    of the last kept event, so a follower that resumes after it misses nothing."""

    def __init__(self, events: list[tuple[int, Event]] | None = None) -> None:
        self._events: list[tuple[int, Event]] = events or []
        self._followers: set[asyncio.Queue[tuple[int, Event]]] = set()

    @property
    def last(self) -> int:
        return self._events[-1][0] if self._events else 0

    @property
    def closed(self) -> bool:
        return bool(self._events) and isinstance(self._events[-1][1], TERMINAL)

    def append(self, event: Event) -> int:
        """Number the event and hand it to the followers. Raises RuntimeError after the end."""
        if self.closed:
            raise RuntimeError(f"{type(event).__name__} after the run's terminal event")
        number = self.last
        if not isinstance(event, Progress):
            number += 1
            self._events.append((number, event))
        for queue in self._followers:
            queue.put_nowait((number, event))
        return number

    def kept(self, after: int = 0) -> list[tuple[int, Event]]:
        return self._events[after:] if after < self.last else []

    async def follow(self, after: int = 0) -> AsyncIterator[tuple[int, Event]]:
        """Events with a number above `after`, then those to come; ends with the terminal one.

        A slow follower loses superseded Progress only: they are dropped while others wait."""
        queue: asyncio.Queue[tuple[int, Event]] = asyncio.Queue()
        self._followers.add(queue)
        try:
            for number, event in self.kept(after):
                yield number, event
                if isinstance(event, TERMINAL):
                    return
            if self.closed and queue.empty():
                return
            while True:
                number, event = await queue.get()
                if isinstance(event, Progress):
                    if queue.empty():
                        yield number, event
                    continue
                if number > after:
                    yield number, event
                if isinstance(event, TERMINAL):
                    return
        finally:
            self._followers.discard(queue)
