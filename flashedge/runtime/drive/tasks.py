"""Helpers for asyncio tasks: a stopwatch, a pool of workers, and the first error of a group."""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import TypeVar

T = TypeVar("T")


class Stopwatch:
    """The time during which at least one request of a kind is open, by the loop's clock."""

    def __init__(self) -> None:
        self._open = 0
        self._since = 0.0
        self._total_s = 0.0

    @property
    def seconds(self) -> float:
        running = asyncio.get_running_loop().time() - self._since if self._open else 0.0
        return self._total_s + running

    @contextmanager
    def open(self) -> Iterator[None]:
        clock = asyncio.get_running_loop().time
        if self._open == 0:
            self._since = clock()
        self._open += 1
        try:
            yield
        finally:
            self._open -= 1
            if self._open == 0:
                self._total_s += clock() - self._since


@contextmanager
def raise_first_error() -> Iterator[None]:
    """Raise the first error of a TaskGroup instead of the group."""
    try:
        yield
    except BaseExceptionGroup as group:
        error: BaseException = group
        while isinstance(error, BaseExceptionGroup):
            error = error.exceptions[0]
        raise error from None


async def run_workers(jobs: int, work: Callable[[T], Awaitable[None]], items: Iterable[T]) -> None:
    """Do `work` for the items, at most `jobs` at a time, begun in order. Raises the first error and
    cancels the rest."""
    left = iter(items)

    async def worker() -> None:
        for item in left:
            await work(item)

    with raise_first_error():
        async with asyncio.TaskGroup() as group:
            for _ in range(jobs):
                group.create_task(worker())
