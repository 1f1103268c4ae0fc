"""How long the daemon itself computes for each token that the engines draw.

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
    """Measures it while boosted runs go on. Ours, not the paper's.

    Tokens of rollouts that are cancelled do not count, so it is rather too long.
    """

    def __init__(
        self, count_tokens: Callable[[], int], cpu_s: Callable[[], float] = time.process_time
    ) -> None:
        """count_tokens: those of all runs and plain requests so far; cpu_s: the processor time of
        this process so far."""
        self._count_tokens = count_tokens
        self._cpu_s = cpu_s
        self._since: tuple[float, int] | None = None
        self._spent_s = self._tokens = 0.0

    @property
    def token_s(self) -> float:
        """Seconds of a processor for a token of one sequence. 0 until enough was measured."""
        return self._spent_s / self._tokens if self._tokens >= LEAST_TOKENS else 0.0

    def look(self) -> None:
        """Count the processor time and the tokens since the last look. The first look, and the
        first one after a pause, counts nothing."""
        cpu_s, tokens = self._cpu_s(), self._count_tokens()
        if self._since is not None:
            self._spent_s += cpu_s - self._since[0]
            self._tokens += tokens - self._since[1]
        self._since = cpu_s, tokens
        if self._tokens > MOST_TOKENS:
            kept = MOST_TOKENS / self._tokens
            self._spent_s *= kept
            self._tokens *= kept

    def pause(self) -> None:
        """No boosted run goes on: what comes until the next look does not count."""
        self.look()
        self._since = None
