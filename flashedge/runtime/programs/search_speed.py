"""How fast the searches draw tokens, measured while they run.

A batch twice as large is rarely twice as fast. The cost curve of the generator says how the speed
grows with the batch; what is measured is how much of that speed the searches get. They wait for
stragglers and for the verifier, and share the engine with chats.
"""

from __future__ import annotations

from collections.abc import Callable
from math import exp

from flashedge.scheduling.costs import BatchTime

MEMORY_S = 20.0
"""Tokens count for about so many seconds. Only time in which searches run passes."""
LEAST_S = 0.5
"""Time in which searches must have run before their speed is known."""

Speed = Callable[[int], float]
"""Tokens a second of a batch of so many sequences."""


class SearchSpeed:
    """Counts tokens against those that the cost curve promises. Older ones fade.

    The speed is kept while nothing runs, as the first guess for what comes next.
    """

    def __init__(self) -> None:
        self._step_s: BatchTime | None = None
        self._running: dict[str, int] = {}  # sequences, by run
        self._seen_s = 0.0
        self._forget()

    def _forget(self) -> None:
        self._tokens = self._promised = self._busy_s = 0.0

    def set_curve(self, step_s: BatchTime | None) -> None:
        """step_s: seconds of a decode step by its batch. None: not known, and every batch counts
        as equally fast."""
        if (step_s is None) != (self._step_s is None):
            self._forget()  # what was measured is in another unit
        self._step_s = step_s

    def start(self, run_id: str, sequences: int, now_s: float) -> None:
        """A search runs from now on."""
        self._pass_time(now_s)
        self._running[run_id] = sequences

    def end(self, run_id: str, now_s: float) -> None:
        """A search is over. Does nothing for one that never ran."""
        self._pass_time(now_s)
        self._running.pop(run_id, None)

    def add(self, tokens: int, now_s: float) -> None:
        """A search has drawn so many tokens since its last ones."""
        self._pass_time(now_s)
        self._tokens += tokens

    def measure(self, now_s: float) -> Speed | None:
        """The speed of searches. None where they have hardly run yet, or drew nothing."""
        self._pass_time(now_s)
        if self._busy_s < LEAST_S or not self._tokens:
            return None
        share = self._tokens / self._promised
        return lambda sequences: share * self._promise(sequences)

    def _promise(self, sequences: int) -> float:
        """Tokens a second by the curve; without one, a unit that cancels out."""
        return 1.0 if self._step_s is None else sequences / self._step_s(sequences)

    def _pass_time(self, now_s: float) -> None:
        passed_s = max(0.0, now_s - self._seen_s)
        self._seen_s = now_s
        if self._running:
            kept = exp(-passed_s / MEMORY_S)
            counted_s = MEMORY_S * (1.0 - kept)
            self._tokens *= kept
            self._busy_s = self._busy_s * kept + counted_s
            promise = self._promise(sum(self._running.values()))
            self._promised = self._promised * kept + promise * counted_s
