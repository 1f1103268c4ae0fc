"""The turns of a pair's self-test, in which nobody else uses the engines, and their time limit."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AbstractContextManager, asynccontextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

from flashedge.scheduling.kv.split import EngineRole

LIMIT_S = 120.0
"""Most seconds of a self-test's turns together. Chosen by hand: in a tenth, a model of 1.5B
parameters would not end one step on two CPU cores; deterministic requests, which wait for the test,
would wait for twenty minutes at ten times."""
POLL_S = 0.05
"""Seconds between two checks whether the engines are free, a small part of a turn's time."""
UNTESTED: Mapping[str, Any] = {
    "batch_invariant": None,
    "invariant_tokens": 0,
    "replay_shape": None,
    "score_shape": None,
    "no_passes": None,
}
"""The results of a self-test that has found out nothing. See `VllmPair.self_test`."""


@dataclass(slots=True)
class Turns:
    """Lets the self-test compute while nobody else does."""

    is_free: Callable[[], Awaitable[bool]] | None = None
    """Asks whether the engines serve and nobody uses them. None if nobody else can use them yet."""
    hold: Callable[[EngineRole], AbstractContextManager[object]] = nullcontext
    """Opens a context around each turn, by which the KV manager knows that the engine is in use."""
    left_s: float = LIMIT_S

    @asynccontextmanager
    async def take(self, role: EngineRole) -> AsyncIterator[None]:
        """Wait until nobody uses the engines, then open a turn on one of them. Raises TimeoutError
        when the turns have used up their time. Waiting does not count."""
        # The engines are in other processes, so no event tells that they are free.
        while self.is_free and not await self.is_free():  # noqa: ASYNC110
            await asyncio.sleep(POLL_S)
        clock = asyncio.get_running_loop().time
        began = clock()
        try:
            with self.hold(role):
                async with asyncio.timeout(self.left_s):
                    yield
        finally:
            self.left_s = max(0.0, self.left_s - (clock() - began))
