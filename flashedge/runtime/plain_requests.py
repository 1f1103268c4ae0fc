"""Who watches the requests outside any run: the metrics, and the scheduler of programs."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from flashedge.engine.http_requests import Follow, PlainAsk
from flashedge.runtime.metrics import Metrics
from flashedge.runtime.programs.scheduler import PairScheduler
from flashedge.scheduling.lengths.outputs import OutputLengths


class _Tally:
    """The cost of one request."""

    def __init__(self) -> None:
        self.began = time.monotonic()
        self.prompt_tokens = self.completion_tokens = 0
        self.first_token_s: float | None = None
        self.finishes: list[str] = []

    def follow(self, prompt_tokens: int, new_tokens: int, finishes: tuple[str, ...]) -> None:
        self.prompt_tokens = max(self.prompt_tokens, prompt_tokens)
        self.completion_tokens += new_tokens
        self.finishes += finishes
        if new_tokens and self.first_token_s is None:
            self.first_token_s = time.monotonic() - self.began


@contextmanager
def watch_cost(metrics: Metrics, ask: PlainAsk) -> Iterator[Follow]:
    """Add a request to the metrics, however it ends."""
    tally, end = _Tally(), "cancelled"
    try:
        yield tally.follow
    except Exception:
        end = "error"
        raise
    finally:
        if len(tally.finishes) >= ask.choices:
            end = "length" if "length" in tally.finishes else "stop"
        if not ask.is_score:
            metrics.observe_chat(
                prompt_tokens=tally.prompt_tokens,
                completion_tokens=tally.completion_tokens,
                first_token_s=tally.first_token_s,
                total_s=time.monotonic() - tally.began,
                finish=end,
                choices=ask.choices,
            )


@contextmanager
def watch_program(find: Callable[[str], PairScheduler], ask: PlainAsk) -> Iterator[Follow]:
    """Schedule a request as a program, or a part of one, while it is open.

    find: gives the scheduler of the pair of this name."""
    scheduler = find(ask.pair)
    member, tally = scheduler.add_request(ask), _Tally()

    def follow(prompt_tokens: int, new_tokens: int, finishes: tuple[str, ...]) -> None:
        tally.follow(prompt_tokens, new_tokens, finishes)
        if new_tokens or finishes:
            scheduler.mark_started(ask.program)
        if new_tokens:
            scheduler.note_tokens(member, new_tokens)

    try:
        yield follow
    finally:
        lengths = None  # of several choices only their sum is known
        if ask.choices == 1 and tally.completion_tokens:
            lengths = OutputLengths.from_outputs(
                [tally.completion_tokens], [tally.finishes != ["stop"]]
            )
        scheduler.leave(member, lengths)
