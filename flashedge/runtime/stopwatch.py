"""Time during which at least one request of a kind is open."""

from __future__ import annotations

import time
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
        running = time.monotonic() - self._since if self._open else 0.0
        return self._total_s + running

    @contextmanager
    def open(self) -> Iterator[None]:
        if self._open == 0:
            self._since = time.monotonic()
        self._open += 1
        try:
            yield
        finally:
            self._open -= 1
            if self._open == 0:
                self._total_s += time.monotonic() - self._since
