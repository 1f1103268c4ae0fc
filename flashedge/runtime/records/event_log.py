"""The numbered events of one run, with any number of followers."""

import asyncio
from collections.abc import AsyncGenerator

from flashedge.events import TERMINAL, Event, Progress


class EventLog:
    """An append-only log whose numbers start at 1. Progress events go to the followers but are not
    kept. Their number is that of the last kept event, at which a client can resume."""

    def __init__(self) -> None:
        self._events: list[tuple[int, Event]] = []
        self._followers: set[asyncio.Queue[tuple[int, Event]]] = set()

    @property
    def last(self) -> int:
        return self._events[-1][0] if self._events else 0

    @property
    def is_closed(self) -> bool:
        return bool(self._events) and isinstance(self._events[-1][1], TERMINAL)

    def append(self, event: Event) -> int:
        """Number an event and send it to the followers. Raises RuntimeError after the end."""
        if self.is_closed:
            raise RuntimeError(f"{type(event).__name__} after the run's terminal event")
        number = self.last
        if not isinstance(event, Progress):
            number += 1
            self._events.append((number, event))
        for queue in self._followers:
            queue.put_nowait((number, event))
        return number

    def read(self, after: int = 0) -> list[tuple[int, Event]]:
        """Return the kept events with a number above `after`."""
        return self._events[after:]

    async def follow(self, after: int = 0) -> AsyncGenerator[tuple[int, Event]]:
        """Yield the events with a number above `after`, then new ones, up to the terminal event.
        A slow follower misses only Progress: one is dropped when another event is waiting."""
        queue: asyncio.Queue[tuple[int, Event]] = asyncio.Queue()
        self._followers.add(queue)
        try:
            for number, event in self.read(after):
                yield number, event
                if isinstance(event, TERMINAL):
                    return
            if self.is_closed and queue.empty():
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
