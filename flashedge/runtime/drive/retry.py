"""Repeats engine work that a dead engine or a failed request interrupted.

A request that ends the engine each time must not take the other requests of its step along. Work
that was in an engine's last step at two deaths is therefore done one at a time from then on. The
innocent requests come through, and the culprit uses up its attempts.
"""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import nullcontext
from typing import TypeVar

from flashedge.engine.base import Generator, Verifier
from flashedge.errors import EngineDead, GenerationFailed
from flashedge.events import EngineRestarted, Event

ATTEMPTS = 3
"""Work that has lost this many attempts ends if a request failed. If the engine died, it ends with
the next lost attempt, since other requests may have caused the first `SUSPICIOUS` deaths. Chosen by
hand: with 1 nothing is repeated; with ten times as many, a request that always kills the engine
would stop all others for minutes."""
PAUSES_S = (0.05, 0.5, 2.0)
"""Seconds to pause before the first, the second and each further wait for a restart: an engine may
look healthy just after it died. Chosen by hand: without a pause the work would spin on the dead
engine, and ten times as much would delay it although the engine is up."""
SUSPICIOUS = 2
"""Work that was in the last step at this many deaths holds `Engine.suspect_lock` from then on, so
that no other such work runs beside it."""
RESTART_TIMEOUT_S = 1800.0
"""A start on a card can take minutes, and may fail a few times before it succeeds."""
T = TypeVar("T")


async def retry_after_restart(
    engine: Generator | Verifier,
    work: Callable[[], Awaitable[T]],
    on_restart: Callable[[float], None],
) -> T:
    """Do `work`, and repeat it after an engine's restart or a failed request. Work loses an attempt
    when its request failed, or was in the step that ended the engine. If the engine died in another
    step, the work is repeated without a limit.

    `on_restart` receives the seconds that the work waited. Raises EngineDead when the engine does
    not come back or keeps dying of the work, and GenerationFailed when the request keeps failing.
    """
    clock = asyncio.get_running_loop().time
    lost = repeats = suspected = 0
    while True:
        try:
            async with nullcontext() if suspected < SUSPICIOUS else engine.suspect_lock:
                return await work()
        except EngineDead as error:
            _raise_if_cancelled()
            suspected += error.is_suspect
            lost += error.is_suspect
            if lost > ATTEMPTS:
                raise
            began = clock()
            await asyncio.sleep(PAUSES_S[min(repeats, len(PAUSES_S) - 1)])
            await engine.wait_ready(RESTART_TIMEOUT_S)
            on_restart(clock() - began)
        except GenerationFailed:
            _raise_if_cancelled()
            lost += 1
            if lost >= ATTEMPTS:
                raise
        repeats += 1


def _raise_if_cancelled() -> None:
    """Raise the cancellation that an engine's error replaced."""
    task = asyncio.current_task()
    if task is not None and task.cancelling():
        raise asyncio.CancelledError


def note_restarts(
    engine: Generator | Verifier, name: str, emit: Callable[[Event], None]
) -> Callable[[float], None]:
    """Build an `on_restart` that emits each restart once for all requests that waited for it."""
    known = engine.health().restarts

    def note(waited_s: float) -> None:
        nonlocal known
        if (restarts := engine.health().restarts) != known:
            known = restarts
            emit(EngineRestarted(engine=name, waited_s=waited_s))

    return note
