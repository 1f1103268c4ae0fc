"""Plain requests as programs: they are active while they are open."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager

from flashedge.engine.http_requests import PlainAsk, PlainRequest, PlainRequests, PlainRequestsProxy
from flashedge.runtime.programs.scheduler import PairScheduler
from flashedge.scheduling.lengths.outputs import OutputLengths


class ProgramRequests(PlainRequestsProxy):
    """Implements `engine.http_requests.PlainRequests` by those of the daemon."""

    def __init__(self, plain: PlainRequests, find: Callable[[str], PairScheduler]) -> None:
        """find: gives the scheduler of the pair of this name."""
        super().__init__(plain)
        self._find = find

    @contextmanager
    def open(self, ask: PlainAsk, abort: Callable[[], Awaitable[None]]) -> Iterator[PlainRequest]:
        """See `engine.http_requests`."""
        scheduler = self._find(ask.pair)
        with self._plain.open(ask, abort) as request:
            noted = _ProgramRequest(request, scheduler, ask)
            try:
                yield noted
            finally:
                scheduler.end_request(noted.member, noted.count())


class _ProgramRequest:
    """Tells the scheduler of each output."""

    def __init__(self, request: PlainRequest, scheduler: PairScheduler, ask: PlainAsk) -> None:
        self.member = scheduler.add_request(ask)
        self._request = request
        self._scheduler = scheduler
        self._ask = ask
        self._tokens = 0
        self._finishes: list[str] = []

    def note(self, *, prompt_tokens: int, new_tokens: int, finishes: tuple[str, ...]) -> None:
        """See `engine.http_requests`."""
        self._request.note(prompt_tokens=prompt_tokens, new_tokens=new_tokens, finishes=finishes)
        self._finishes += finishes
        self._tokens += new_tokens
        if new_tokens or finishes:
            self._scheduler.mark_started(self._ask.program)
        if new_tokens:
            self._scheduler.note_tokens(self.member, new_tokens)

    def count(self) -> OutputLengths | None:
        """How long the output became. None of several choices, which only their sum is known of."""
        if self._ask.choices != 1 or not self._tokens:
            return None
        return OutputLengths.from_outputs([self._tokens], [self._finishes != ["stop"]])
