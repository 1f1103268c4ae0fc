"""Watches the card under the engines, so that health says when it is the card that failed, and who
else holds its memory."""

from __future__ import annotations

import asyncio
import logging
import os

from flashedge.engine.platform import runs_on_cpu
from flashedge.profiler.card_watch import CardUser, CardWatch, find_own_pids, read_card_users
from flashedge.profiler.errors import ProfileError

log = logging.getLogger(__name__)

PERIOD_S = 5.0


def read_others() -> tuple[CardUser, ...]:
    """The programs on the cards that this process did not start."""
    return read_card_users(find_own_pids(os.getpid()))


class DeviceWatch:
    """Looks at the card every few seconds. It does nothing on a CPU."""

    def __init__(self) -> None:
        self.faults: tuple[str, ...] = ()
        """A line for each thing that is wrong with the card."""
        self.users: tuple[CardUser, ...] = ()
        """The programs that hold memory of the cards, apart from this one and its engines."""
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        if not runs_on_cpu():
            self._task = asyncio.create_task(self._run(), name="device-watch")

    async def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait({self._task})

    async def _run(self) -> None:
        """Watch until cancelled. NVML is called in threads: a card that fails may block it."""
        try:
            watch = await asyncio.to_thread(CardWatch)
        except ProfileError as error:
            log.warning("the card is not watched: %s", error)
            return
        try:
            while True:
                found = await asyncio.to_thread(watch.poll)
                for fault in found:
                    if fault not in self.faults:
                        log.error("%s", fault)
                self.faults = found
                self.users = await asyncio.to_thread(read_others)
                await asyncio.sleep(PERIOD_S)
        finally:
            watch.close()
