"""Measures the time during which at least one request of a kind is open."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager


class Stopwatch:
    """Wrap each request in `with watch.open():`. `seconds` counts overlapping requests once."""

    def __init__(self) -> None:
        self._open = 0
        self._since = 0.0
        self._total_s = 0.0

    @property
    def seconds(self) -> float:
        running = _read_clock() - self._since if self._open else 0.0
        return self._total_s + running

    @contextmanager
    def open(self) -> Iterator[None]:
        if self._open == 0:
            self._since = _read_clock()
        self._open += 1
        try:
            yield
        finally:
            self._open -= 1
            if self._open == 0:
                self._total_s += _read_clock() - self._since


def _read_clock() -> float:
    """Read the running loop's clock: real seconds, or virtual ones on the simulated engine."""
    return asyncio.get_running_loop().time()
