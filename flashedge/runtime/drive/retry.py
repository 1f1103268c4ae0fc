"""Repeats engine work that a dead engine or a failed request interrupted."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

from flashedge.engine.base import Generator, Verifier
from flashedge.errors import EngineDead, GenerationFailed

ATTEMPTS = 3
PAUSES_S = (0.05, 0.5, 2.0)  # before each wait: the engine may notice its death after we do
RESTART_TIMEOUT_S = 120.0
T = TypeVar("T")


async def retry_after_restart(
    engine: Generator | Verifier,
    work: Callable[[], Awaitable[T]],
    on_restart: Callable[[float], None],
) -> T:
    """Do `work`, and repeat it after an engine's restart or a failed request.

    Repeating loses nothing: what a request yields is a pure function of its path and seed.
    `on_restart` receives the seconds that the restart took. Raises EngineDead when the engine does
    not come back and GenerationFailed when the request keeps failing. An error that the engine
    raises because the task was cancelled ends in CancelledError.
    """
    for attempt in range(ATTEMPTS):
        try:
            return await work()
        except EngineDead:
            _raise_if_cancelled()
            clock = asyncio.get_running_loop().time
            began = clock()
            await asyncio.sleep(PAUSES_S[attempt])
            await engine.wait_ready(RESTART_TIMEOUT_S)
            on_restart(clock() - began)
        except GenerationFailed:
            _raise_if_cancelled()
            if attempt == ATTEMPTS - 1:
                raise
    return await work()


def _raise_if_cancelled() -> None:
    """Raise the cancellation that an engine's error replaced."""
    task = asyncio.current_task()
    if task is not None and task.cancelling():
        raise asyncio.CancelledError
