"""Gives a pair's self-test turns in which nobody else uses the engines, and limits their time."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AbstractContextManager, asynccontextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

from flashedge.scheduling.kv.split import EngineRole

LIMIT_S = 120.0
"""Most seconds of a self-test's turns together. Chosen by hand: in a tenth, 1.5B parameters on two
CPU cores would not end one step; deterministic requests have to wait for the test."""
LONGEST_S = 2.0
"""Longest that one turn should take, for users may wait for it. Longer work is not begun."""
POLL_S = 0.05
"""Seconds between two looks whether the engines are free: few against the time of a turn."""
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
    count: Callable[[EngineRole], AbstractContextManager[object]] = nullcontext
    """Opened around each turn, for whoever moves memory between the engines."""
    left_s: float = LIMIT_S
    """Seconds that are left for turns."""

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
            with self.count(role):
                async with asyncio.timeout(self.left_s):
                    yield
        finally:
            self.left_s = max(0.0, self.left_s - (clock() - began))
