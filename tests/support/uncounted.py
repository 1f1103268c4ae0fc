"""Plain requests that nobody counts."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager

from flashedge.engine.http_requests import PlainAsk


class Uncounted:
    """Implements `engine.http_requests.PlainRequests`, and PlainRequest too."""

    def check_admission(self, pair: str, choices: int) -> None: ...

    is_stopping = False

    @contextmanager
    def open(self, ask: PlainAsk, abort: Callable[[], Awaitable[None]]) -> Iterator[Uncounted]:
        yield self

    def note(self, *, prompt_tokens: int, new_tokens: int, finishes: tuple[str, ...]) -> None: ...
