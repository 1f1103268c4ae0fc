"""Boosting in the daemon: one board for all MCTS runs that ask for it.

Rollouts are divided anew when a run arrives or ends, when a rollout ends, and every `LOOK_S`
seconds, since the load of the engines changes meanwhile. They are asked for it only where more
rollouts would gain if there was room: asking took 2 % of a core. What a run gets is told to its
driver as an `Allowance`; the run stores it, so that it can be replayed (`replay.py`).

Off: `scheduling_boost = "off"`. Ref: arXiv 2604.00510 §4.5 (Algorithm 1), with a gate of our own.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

from flashedge.events import Event
from flashedge.runtime.rollouts.daemon_time import DaemonTime
from flashedge.runtime.rollouts.run_watch import RunWatch
from flashedge.runtime.rollouts.station import Allow, BoostedEngines, Station
from flashedge.scheduling.rollouts.allocation import Allocator, ByScore
from flashedge.scheduling.rollouts.board import RolloutBoard
from flashedge.scheduling.rollouts.gate import IDLE, Gate, Opening
from flashedge.scheduling.rollouts.standing import BoostStanding

LOOK_S = 0.25
"""How often the engines are looked at while boosted runs go on."""


class Boosting:
    """Divides rollouts among the runs that join."""

    def __init__(
        self,
        *,
        allocator: Allocator | None = None,
        gate: Gate | None = None,
        clock: Callable[[], float] = time.monotonic,
        look_s: float = LOOK_S,
        daemon: DaemonTime | None = None,
    ) -> None:
        self._allocator = allocator or ByScore()
        self._gate = gate or Gate()
        self._clock = clock
        self._look_s = look_s
        self._daemon = daemon or DaemonTime(lambda: 0)
        self._stations: dict[str, Station] = {}
        self._stations_of: dict[str, Station] = {}
        """By run."""
        self._changed = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self.running_s = self.open_s = 0.0
        """Seconds in which boosted runs went on, and in which the gate let more than one rollout of
        each through."""
        self._counted_s: float | None = None

    def now_s(self) -> float:
        """The time by which runs' ages count."""
        return self._clock()

    async def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait({self._task})

    @contextmanager
    def join(self, watch: RunWatch | None, engines: BoostedEngines, allow: Allow) -> Iterator[None]:
        """Boost a run for the length of the block. It begins with one rollout in flight.

        watch: None for a run that is not boosted, with which this does nothing.
        """
        if watch is None:
            yield
            return
        key = watch.contender.key
        station = self._stations.get(engines.name)
        if station is None:
            board = RolloutBoard(self._allocator)
            station = Station(engines=engines, board=board, recent_s=2 * self._look_s)
            self._stations[engines.name] = station
        station.engines = engines
        station.add(watch, allow)
        self._stations_of[key] = station
        self._divide(station)
        self._look_soon()
        try:
            yield
        finally:
            self._count_time()
            station.remove(key)
            del self._stations_of[key]
            if not station.watches:
                del self._stations[engines.name]
            self._count_time()  # the time until the next run does not count
            self._look_soon()

    def note_event(self, run_id: str, event: Event) -> None:
        """Follow a run. Does nothing for one that is not boosted."""
        station = self._stations_of.get(run_id)
        if station is None:
            return
        changes = station.watches[run_id].observe(event)
        if changes and station.board.update(run_id, **changes):
            self._look_soon()

    def list_standings(self) -> tuple[BoostStanding, ...]:
        """How rollouts are divided now, for each pair with boosted runs."""
        return tuple(
            BoostStanding(
                pair=name,
                budget=station.opening.budget,
                reason=station.opening.reason,
                runs=dict(station.board.granted),
            )
            for name, station in self._stations.items()
        )

    # ------------------------------------------------------------ looking

    def _look_soon(self) -> None:
        self._changed.set()
        if self._stations and (self._task is None or self._task.done()):
            self._task = asyncio.get_running_loop().create_task(self._look(), name="boosting")

    async def _look(self) -> None:
        """Divide anew at each change, and look at the engines at regular times in between, however
        often something changes."""
        due_s = self._clock() + self._look_s
        while self._stations:
            with suppress(TimeoutError):
                async with asyncio.timeout(max(0.0, due_s - self._clock())):
                    await self._changed.wait()
            self._changed.clear()
            if is_due := self._clock() >= due_s:
                due_s = self._clock() + self._look_s
                self._daemon.look()
            for station in list(self._stations.values()):
                must_ask = is_due or not station.is_recent(self._clock())
                if must_ask and self._would_open(station):
                    await station.look(self._clock)
                self._divide(station)
        self._daemon.pause()

    def _would_open(self, station: Station) -> bool:
        """Whether the gate would let more through if the engines had room."""
        runs = station.board.runs
        if not runs:  # the last one ended during a look at another pair
            return False
        cost = station.find_cost(self._daemon.token_s)
        return self._gate.open(runs, self._allocator, IDLE, cost).budget > len(runs)

    # ------------------------------------------------------------ dividing

    def _divide(self, station: Station) -> None:
        """Find the budget, and tell each run what changes: first those that get less."""
        self._count_time()
        runs, now_s = station.board.runs, self._clock()
        if not runs:
            return
        load = station.find_load(now_s)
        cost = station.find_cost(self._daemon.token_s)
        opening = self._gate.open(runs, self._allocator, load or IDLE, cost)
        if load is None:  # nobody gets more until it is known whether there is room
            most, reason = len(runs), "the engines do not answer"
            if not station.is_recent(now_s):
                most, reason = max(most, station.granted), "the engines are being asked"
            if opening.budget > most:
                opening = Opening(budget=most, reason=reason)
        station.opening = opening
        for move in station.board.plan(station.opening.budget, now_s):
            station.allow[move.key](move.rollouts, station.opening.budget)

    def _count_time(self) -> None:
        now_s = self._clock()
        if self._counted_s is not None and self._stations:
            passed_s = now_s - self._counted_s
            self.running_s += passed_s
            if any(station.granted > len(station.board) for station in self._stations.values()):
                self.open_s += passed_s
        self._counted_s = now_s if self._stations else None
