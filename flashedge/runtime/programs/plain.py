"""Plain requests as programs: they join the board while they are open."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager

from flashedge.engine.http_requests import (
    PlainAsk,
    PlainRequest,
    PlainRequests,
    PlainRequestsProxy,
)
from flashedge.runtime.programs.asker import Asker
from flashedge.runtime.programs.programs import Programs
from flashedge.scheduling.lengths.outputs import OutputLengths


class ProgramRequests(PlainRequestsProxy):
    """Implements `engine.http_requests.PlainRequests` by those of the daemon."""

    def __init__(self, plain: PlainRequests, find_programs: Callable[[str], Programs]) -> None:
        """find_programs: gives the programs of the pair of this name."""
        super().__init__(plain)
        self._find_programs = find_programs

    @contextmanager
    def open(self, ask: PlainAsk, abort: Callable[[], Awaitable[None]]) -> Iterator[PlainRequest]:
        """See `engine.http_requests`."""
        programs = self._find_programs(ask.pair)
        with self._plain.open(ask, abort) as request:
            asker = Asker(client=ask.client, program=ask.program, priority=ask.priority)
            opened = programs.add_request(ask, asker)
            noted = _ProgramRequest(request, programs, ask.program, opened.member)
            try:
                yield noted
            finally:
                programs.end_request(opened, noted.count(ask.choices))


class _ProgramRequest:
    """Tells the program of each output."""

    def __init__(self, request: PlainRequest, programs: Programs, key: str, member: str) -> None:
        self._request = request
        self._programs = programs
        self._key = key
        self._member = member
        self._tokens = 0
        self._finishes: list[str] = []

    def note(self, *, prompt_tokens: int, new_tokens: int, finishes: tuple[str, ...]) -> None:
        """See `engine.http_requests`."""
        self._request.note(prompt_tokens=prompt_tokens, new_tokens=new_tokens, finishes=finishes)
        self._finishes += finishes
        self._tokens += new_tokens
        if new_tokens or finishes:
            self._programs.mark_started(self._key)
        if new_tokens:
            self._programs.note_tokens(self._member, new_tokens)

    def count(self, choices: int) -> OutputLengths | None:
        """How long the output became. None of several choices, which only their sum is known of."""
        if choices != 1 or not self._tokens:
            return None
        return OutputLengths.from_outputs([self._tokens], [self._finishes != ["stop"]])
