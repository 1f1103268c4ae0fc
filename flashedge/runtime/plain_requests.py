"""Requests outside any run: how many are open, and what they cost."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager, suppress

from flashedge.engine.http_requests import PlainAsk
from flashedge.errors import QueueFull, RequestError
from flashedge.runtime.metrics import Metrics
from flashedge.runtime.queue import RETRY_AFTER_S

MAX_CHOICES = 256
"""Most choices that a pair generates or scores at once. More are refused."""
STOP_TIMEOUT_S = 2.0


class PlainTally:
    """The cost of one request. Implements `engine.http_requests.PlainRequest`."""

    def __init__(self, choices: int) -> None:
        self._choices = choices
        self._began = time.monotonic()
        self._prompt_tokens = 0
        self._completion_tokens = 0
        self._first_token_s: float | None = None
        self._finishes: list[str] = []

    def note(self, *, prompt_tokens: int, new_tokens: int, finishes: tuple[str, ...]) -> None:
        """See `engine.http_requests`."""
        self._prompt_tokens = max(self._prompt_tokens, prompt_tokens)
        self._completion_tokens += new_tokens
        self._finishes += finishes
        if new_tokens and self._first_token_s is None:
            self._first_token_s = time.monotonic() - self._began

    def report(self, metrics: Metrics, error: BaseException | None) -> None:
        """Add the request to the metrics, however it ended."""
        finish = "error" if isinstance(error, Exception) else "cancelled"
        if len(self._finishes) >= self._choices:
            finish = "length" if "length" in self._finishes else "stop"
        metrics.observe_chat(
            prompt_tokens=self._prompt_tokens,
            completion_tokens=self._completion_tokens,
            first_token_s=self._first_token_s,
            total_s=time.monotonic() - self._began,
            finish=finish,
            choices=self._choices,
        )


class PlainRequests:
    """All open requests outside any run. Implements `engine.http_requests.PlainRequests`."""

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics
        self._open: Counter[str] = Counter()
        """Choices that are being generated or scored, by pair."""
        self._aborts: set[Callable[[], Awaitable[None]]] = set()
        self._idle = asyncio.Event()
        self._idle.set()
        self.is_stopping = False

    def check_admission(self, pair: str, choices: int) -> None:
        """Raises QueueFull when a request of so many choices is too many for this pair now,
        RequestError when it always is."""
        if choices > MAX_CHOICES:
            raise RequestError(f"n is {choices}; at most {MAX_CHOICES} are generated", param="n")
        if self._open[pair] + choices > MAX_CHOICES:
            raise QueueFull(
                f"{self._open[pair]} completions and scores are open", retry_after_s=RETRY_AFTER_S
            )

    async def stop(self) -> None:
        """Abort the open requests, and wait until their clients know."""
        self.is_stopping = True
        await asyncio.gather(*(abort() for abort in self._aborts), return_exceptions=True)
        with suppress(TimeoutError):
            async with asyncio.timeout(STOP_TIMEOUT_S):
                await self._idle.wait()

    @contextmanager
    def open(self, ask: PlainAsk, abort: Callable[[], Awaitable[None]]) -> Iterator[PlainTally]:
        """See `engine.http_requests`. Raises QueueFull."""
        choices = ask.choices
        self.check_admission(ask.pair, choices)
        self._aborts.add(abort)
        tally, error = PlainTally(choices), None
        self._open[ask.pair] += choices
        self._idle.clear()
        try:
            yield tally
        except BaseException as caught:
            error = caught
            raise
        finally:
            self._aborts.discard(abort)
            self._open[ask.pair] -= choices
            if not self._open.total():
                self._idle.set()
            if not ask.is_score:
                tally.report(self._metrics, error)
