"""How long the daemon itself computes for each token that boosted runs draw.

Engines are profiled without it. With many sequences in flight its time counts: it is added to
theirs where they share processors, and may bound them where they do not (`RolloutCost`).
"""

from __future__ import annotations

import time
from collections.abc import Callable

LEAST_TOKENS = 500
"""Tokens from which on the measurement is used."""
MOST_TOKENS = 5_000
"""Of what was measured before, so much counts beside what comes."""


class DaemonTime:
    """Measures it while boosted runs go on. Ours, not the paper's."""

    def __init__(self, cpu_s: Callable[[], float] = time.process_time) -> None:
        """cpu_s: the processor time of this process so far."""
        self._cpu_s = cpu_s
        self._since_s: float | None = None
        self._spent_s = self._tokens = 0.0

    @property
    def token_s(self) -> float:
        """Seconds of a processor for a token of one sequence. 0 until enough was measured."""
        return self._spent_s / self._tokens if self._tokens >= LEAST_TOKENS else 0.0

    def note_tokens(self, tokens: int) -> None:
        """A boosted run has drawn so many more."""
        self._tokens += tokens

    def look(self, share: float) -> None:
        """Count the time since the last look.

        share: of all sequences, that of boosted runs. The rest of the time served others.
        """
        now_s = self._cpu_s()
        if self._since_s is not None:
            self._spent_s += (now_s - self._since_s) * share
        self._since_s = now_s
        if self._tokens > MOST_TOKENS:
            kept = MOST_TOKENS / self._tokens
            self._spent_s *= kept
            self._tokens *= kept

    def pause(self) -> None:
        """No boosted run goes on: the time until the next look does not count."""
        self._since_s = None
