"""The time that a pair's self-test may take, and when: only while nobody uses its engines."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AbstractContextManager, asynccontextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

from flashedge.scheduling.kv.split import EngineRole

LIMIT_S = 120.0
"""Time of its own that a self-test gets. A small model needs a second."""
LONGEST_S = 2.0
"""A user's request may have to wait for one turn, so work that is known to take longer is not
begun."""
POLL_S = 0.05
"""Between two looks whether the engines are free: little against a turn."""
UNTESTED: Mapping[str, Any] = {
    "batch_invariant": None,
    "invariant_tokens": 0,
    "replay_shape": None,
    "score_shape": None,
    "no_passes": None,
}
"""What is known without a self-test."""


@dataclass(slots=True)
class Turns:
    """Lets the self-test compute while nobody else does."""

    is_free: Callable[[], Awaitable[bool]] | None = None
    """Asks whether the engines serve and nobody uses them. None: nobody else knows them yet."""
    count: Callable[[EngineRole], AbstractContextManager[object]] = nullcontext
    """Tells whoever moves memory between the engines of a turn on one of them."""
    left_s: float = LIMIT_S
    """What is left of the test's own time."""

    @asynccontextmanager
    async def take(self, role: EngineRole) -> AsyncIterator[None]:
        """Wait until nobody uses the engines, for a turn on one of them. Raises TimeoutError when
        the test has used up its time; waiting does not count."""
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
