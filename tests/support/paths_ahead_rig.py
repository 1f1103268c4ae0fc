"""A run whose groups may be drawn ahead: its program is alone on engines with room."""

from __future__ import annotations

import asyncio
from dataclasses import replace

from flashedge.events import Event
from flashedge.runtime.drive.driver import Driver
from flashedge.runtime.drive.earlier_run import NO_EARLIER_RUN, EarlierRun
from flashedge.runtime.drive.engines import Engines
from flashedge.runtime.drive.outcome import Outcome
from flashedge.runtime.programs.room_ahead import RoomAhead
from flashedge.runtime.request.early_exit import ExitOptions
from flashedge.runtime.request.spec import RunSpec
from flashedge.scheduling.programs.admission import Capacity
from flashedge.scheduling.programs.program import Program
from tests.support.runtime_rig import driver_of, sim_engines

UNSURE = ExitOptions(policy="static", detect=3, thresholds={"entropy": 1.0})
"""Asks after three paths, and is sure only if all agree."""
SURE = replace(UNSURE, thresholds={"entropy": 0.0})
CAPACITY = Capacity(kv_tokens=4096, max_running=8, useful_sequences=64, step_s=lambda batch: 1.0)


class AheadRig:
    """on: whether groups are drawn ahead."""

    def __init__(
        self,
        spec: RunSpec,
        *,
        on: bool = True,
        engines: Engines | None = None,
        capacity: Capacity | None = CAPACITY,
        earlier: EarlierRun = NO_EARLIER_RUN,
    ) -> None:
        program = Program(key="run", arrived_s=0.0, started_s=0.0, max_tokens=64)
        self.programs = [program]
        self.room = RoomAhead(lambda: self.programs)
        self.room.set_capacity(capacity)
        self.spec = spec
        self.engines = replace(
            engines or sim_engines(), program="run", room_ahead=self.room
        ).switch(paths_ahead=on)
        self.events: list[Event] = []
        self.driver: Driver = driver_of(self.engines, spec, self.events.append, earlier)
        self.took_s = 0.0

    async def run(self) -> Outcome:
        clock = asyncio.get_running_loop().time
        began = clock()
        try:
            return await self.driver.run()
        finally:
            self.took_s = clock() - began
