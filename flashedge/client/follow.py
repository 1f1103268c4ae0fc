"""Follow a run over connections that may break.

`RetryPolicy` and `Reconnection` decide without I/O after which event to resume, how long to pause,
and when to give up. `follow`, `retry` and the synchronous client apply them.
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

CANCEL_TIMEOUT_S = 5.0  # chosen by hand: a daemon that is alive answers in milliseconds
MIN_QUEUE_PAUSE_S = 0.05
"""Shortest pause after `queue_full`. Without it a Retry-After of 0 would make `retry` spin."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RetryPolicy:
    """How often, and after which pauses, a failed call is repeated."""

    first_s: float
    """The pause after the first failure. Each further failure in a row doubles it."""
    longest_s: float = math.inf
    max_retries: int | None = None
    """Most retries in a row; the next failure is final. None sets no limit."""

    def find_pause_s(self, failures: int) -> float:
        """The pause after `failures` in a row, of which there is at least one."""
        doublings = min(failures - 1, 63)  # 2.0**1024 would raise OverflowError
        return min(self.first_s * 2.0**doublings, self.longest_s)


ATTENDED = RetryPolicy(first_s=0.25, max_retries=3)
"""For a user who waits at the terminal: pauses for about two seconds in all, then gives up."""

UNATTENDED = RetryPolicy(first_s=0.25, longest_s=4.0, max_retries=5)
"""For long jobs such as a batch: pauses for about eight seconds in all, then gives up."""


class Reconnection:
    """Where to resume a run's events, and how often in a row the daemon could not be reached."""

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
        """Note a failure. Returns the pause in seconds before the next try, or None to give up."""
        self._failures += 1
        limit = self._policy.max_retries
        if limit is not None and self._failures > limit:
            return None
        return self._policy.find_pause_s(self._failures)


def explain_lost_run(run: str, error: DaemonError) -> DaemonError:
    return DaemonError(
        f"the daemon went away during run {run}: {error}",
        hint=f"its events so far are kept: flashedge up, then flashedge runs show {run}",
    )


async def follow(
    client: AsyncClient, run: str, policy: RetryPolicy, after: int = 0
) -> AsyncGenerator[tuple[Numbered, ...]]:
    """Yield (number, event) of the run's events, from the one after `after` to the terminal one, in
    groups as they arrive. Reconnects when the connection breaks. Raises RunInterrupted when the
    daemon ended before the run did, DaemonError when the daemon stays away, and the error that the
    daemon reports, such as NotFound."""
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
    """Return the result of `call`. Repeat it without limit while the queue is full. Repeat it by
    `policy` after a DaemonError or EngineDead, and raise the last of them. `on_loss` is called at
    each of these failures."""
    connection = Reconnection(policy)
    while True:
        try:
            return await call()
        except QueueFull as error:
            connection = Reconnection(policy)  # the daemon answered: count failures anew
            pause_s = max(error.retry_after_s, MIN_QUEUE_PAUSE_S)
        except (DaemonError, EngineDead):
            if on_loss is not None:
                on_loss()
            if (failed := connection.fail()) is None:
                raise
            pause_s = failed
        await asyncio.sleep(pause_s)


async def cancel_quietly(client: AsyncClient, run: str) -> bool:
    """Cancel a run that nobody waits for any more. Returns whether the daemon did so: errors and a
    late answer are ignored."""
    with suppress(FlashEdgeError, TimeoutError):
        async with asyncio.timeout(CANCEL_TIMEOUT_S):
            await client.cancel(run)
            return True
    return False
