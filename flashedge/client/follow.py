"""Follow a run while the connection to its daemon may break.

`RetryPolicy` and `Reconnection` decide without I/O: after which event to resume, how long to pause,
when to give up. `follow` and `retry` apply them; so does the synchronous client.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

from flashedge.errors import DaemonError, EngineDead, FlashEdgeError, QueueFull, RunInterrupted

if TYPE_CHECKING:
    from flashedge.client.async_client import AsyncClient
    from flashedge.client.run_view import Numbered

T = TypeVar("T")

CANCEL_TIMEOUT_S = 5.0
MIN_QUEUE_PAUSE_S = 0.05
"""Between two tries when the daemon says that its queue is full and asks for no pause."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RetryPolicy:
    first_s: float
    """The pause after the first failure. Each further failure in a row doubles it."""
    longest_s: float = math.inf
    max_retries: int | None = None
    """Retries in a row before the caller gives up. None never gives up."""

    def pause_s(self, failures: int) -> float:
        doublings = min(failures - 1, 63)  # no float overflows however long the daemon is away
        return min(self.first_s * 2.0**doublings, self.longest_s)


ATTENDED = RetryPolicy(first_s=0.25, max_retries=3)
"""For a user who waits at the terminal: gives up after two seconds."""

UNATTENDED = RetryPolicy(first_s=0.25, longest_s=4.0, max_retries=5)
"""For long jobs such as a batch: gives up after eight seconds."""


class Reconnection:
    def __init__(self, policy: RetryPolicy, after: int = 0) -> None:
        self.last = after
        """The number of the last event received: the stream resumes after it."""
        self._policy = policy
        self._failures = 0

    def receive(self, number: int) -> None:
        """Note that event `number` arrived, so the daemon is there."""
        self.last = number
        self._failures = 0

    def fail(self) -> float | None:
        """Note a failure. The pause before the next try, or None when it is time to give up."""
        self._failures += 1
        limit = self._policy.max_retries
        if limit is not None and self._failures > limit:
            return None
        return self._policy.pause_s(self._failures)


def explain_lost_run(run: str, error: DaemonError) -> DaemonError:
    return DaemonError(
        f"the daemon went away during run {run}: {error}",
        hint=f"its events so far are kept: flashedge up, then flashedge runs show {run}",
    )


async def follow(
    client: AsyncClient, run: str, policy: RetryPolicy, after: int = 0
) -> AsyncGenerator[tuple[Numbered, ...]]:
    """The run's events after number `after` to the terminal one, reconnecting when cut off.

    Raises RunInterrupted when the daemon ended before the run did, DaemonError when it stays away,
    NotFound when it does not know the run.
    """
    connection = Reconnection(policy, after)
    while True:
        try:
            async with aclosing(client.events(run, connection.last)) as pieces:
                async for piece in pieces:
                    connection.receive(piece[-1][0])
                    yield piece
            return
        except RunInterrupted:
            raise
        except DaemonError as error:
            pause_s = connection.fail()
            if pause_s is None:
                raise explain_lost_run(run, error) from error
        await asyncio.sleep(pause_s)


async def retry(
    call: Callable[[], Awaitable[T]], policy: RetryPolicy, on_loss: Callable[[], None] | None = None
) -> T:
    """The result of `call`, repeated while the queue is full or the daemon does not answer.

    `on_loss` is called at each failure to reach the daemon. Raises DaemonError or EngineDead when
    the daemon stays away.
    """
    connection = Reconnection(policy)
    while True:
        try:
            return await call()
        except QueueFull as error:
            pause_s = max(error.retry_after_s, MIN_QUEUE_PAUSE_S)
        except (DaemonError, EngineDead):
            if on_loss is not None:
                on_loss()
            if (failed := connection.fail()) is None:
                raise
            pause_s = failed
        await asyncio.sleep(pause_s)


async def cancel_quietly(client: AsyncClient, run: str) -> None:
    """Cancel a run on leaving. A daemon that does not answer is left alone."""
    with suppress(FlashEdgeError, TimeoutError):
        async with asyncio.timeout(CANCEL_TIMEOUT_S):
            await client.cancel(run)
