"""Sends the order of programs to the engines whenever it changes.

It is made anew on each change, and once a second while something is here, since waiting changes it
too. At most one is sent every `LEAST_INTERVAL_S`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence

LEAST_INTERVAL_S = 0.02
"""Between two orders that are sent."""
LOOK_S = 1.0
"""How often the order is made anew while nothing happens but waiting."""

SendOrder = Callable[[Sequence[str]], Awaitable[None]]
"""Sends an order of programs to all engines."""


class OrderSender:
    """Runs a task as long as there are programs."""

    def __init__(self, make_order: Callable[[], tuple[str, ...]], send: SendOrder) -> None:
        """make_order: the keys of all programs, the first to run first."""
        self._make_order = make_order
        self._send = send
        self._changed = asyncio.Event()
        self._sent: tuple[str, ...] = ()
        self._task: asyncio.Task[None] | None = None

    def note_change(self) -> None:
        """The order may be another one now."""
        self._changed.set()
        if self._task is None or self._task.done():
            self._task = asyncio.get_running_loop().create_task(self._run(), name="program-order")

    async def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait({self._task})

    async def _run(self) -> None:
        order: tuple[str, ...] | None = None
        while order != () or self._changed.is_set():
            try:
                async with asyncio.timeout(LOOK_S):
                    await self._changed.wait()
            except TimeoutError:
                pass  # time alone changes the order, too
            self._changed.clear()
            order = self._make_order()
            if order != self._sent:
                self._sent = order
                await self._send(order)
            await asyncio.sleep(LEAST_INTERVAL_S)
