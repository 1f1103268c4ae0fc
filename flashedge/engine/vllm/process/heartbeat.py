"""Finds an engine process that lives and does nothing any more.

A kernel that never ends, a driver that blocks or a process that somebody stopped does not end the
process, so nothing else would notice. The daemon therefore asks the process for a sign of life,
which it gives between two steps and when idle. Progress in the step record counts too: a process
that is busy with long work outside a step notes it there.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

PERIOD_S = 5.0
"""Most seconds between two questions."""
MOST_STEP_S = 1800.0
"""Longest step that is meant: half an hour."""
PERIODS = 8
"""A short deadline is divided into so many periods."""


async def watch_heart(
    beat: Callable[[], Awaitable[object]],
    read_progress: Callable[[], int],
    hang_s: float,
    read_step_s: Callable[[], float] = lambda: 0.0,
) -> float:
    """Wait until the process gave no sign of life for `hang_s`. Returns for how long it gave none.

    beat: asks the process. It may fail: then the process has ended, which is noticed elsewhere.
    read_progress: reads how many signs of life the process has written. read_step_s: how long its
    present step may take, if that is more than `hang_s`.

    A daemon that was stopped itself, or could not run for a while, does not count that time.
    """
    period_s = min(PERIOD_S, hang_s / PERIODS)
    clock = asyncio.get_running_loop().time
    answer: asyncio.Future[object] | None = None
    seen, silent_s = read_progress(), 0.0
    try:
        limit_s = hang_s
        while silent_s < limit_s:
            limit_s = max(hang_s, min(read_step_s(), MOST_STEP_S))
            if answer is None:
                answer = asyncio.ensure_future(beat())
            began = clock()
            await asyncio.sleep(period_s)
            silent_s += min(clock() - began, 2 * period_s)
            if answer.done():
                if not answer.cancelled() and answer.exception() is None:
                    silent_s = 0.0
                answer = None
            if (progress := read_progress()) != seen:
                seen, silent_s = progress, 0.0
    finally:
        if answer is not None:
            answer.cancel()
    return silent_s
