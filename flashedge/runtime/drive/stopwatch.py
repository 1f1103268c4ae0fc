"""Time during which at least one request of a kind is open."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager


class Stopwatch:
    """`with watch.open():` around each request; `seconds` counts overlapping ones once."""

    def __init__(self) -> None:
        self._open = 0
        self._since = 0.0
        self._total_s = 0.0

    @property
    def seconds(self) -> float:
        running = _now() - self._since if self._open else 0.0
        return self._total_s + running

    @contextmanager
    def open(self) -> Iterator[None]:
        if self._open == 0:
            self._since = _now()
        self._open += 1
        try:
            yield
        finally:
            self._open -= 1
            if self._open == 0:
                self._total_s += _now() - self._since


def _now() -> float:
    """The running loop's clock: real seconds, or virtual ones on the simulated engine."""
    return asyncio.get_running_loop().time()
