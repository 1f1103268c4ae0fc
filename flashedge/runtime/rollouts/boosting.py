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
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from typing import Protocol

from flashedge.engine.base import EngineView
from flashedge.errors import EngineError
from flashedge.events import Event
from flashedge.runtime.rollouts.daemon_time import DaemonTime
from flashedge.runtime.rollouts.run_watch import RunWatch
from flashedge.scheduling.rollouts.allocation import Allocator, ByScore
from flashedge.scheduling.rollouts.board import RolloutBoard
from flashedge.scheduling.rollouts.gate import IDLE, EngineLoad, Gate, Opening
from flashedge.scheduling.rollouts.rollout_cost import LEVEL_TOKENS, RolloutCost
from flashedge.scheduling.rollouts.standing import BoostStanding

LOOK_S = 0.25
"""How often the engines are looked at while boosted runs go on."""
OTHERS_LOOKS = 2
"""Sequences of others count once they are there at so many looks in a row: for a moment an engine
goes on with what a run has cancelled."""
KEPT_SHARE = 0.1
"""Share of an engine's KV and batch that boosting leaves free, for what comes before the next
look."""

Allow = Callable[[int, int], None]
"""Tells a run how many rollouts it may have in flight, and how many all runs may have."""


class BoostedEngines(Protocol):
    """The engines of a pair, as far as boosting looks at them."""

    @property
    def name(self) -> str: ...

    @property
    def rollout_cost(self) -> RolloutCost | None:
        """None where the speed of the device was not measured."""
        ...

    @property
    def max_sequences(self) -> int:
        """Most sequences in one step of the generator."""
        ...

    async def views(self) -> Mapping[str, EngineView]:
        """The load of "generator" and "verifier" now. Raises EngineError."""
        ...


@dataclass(slots=True)
class _Station:
    """The boosted runs on one pair."""

    engines: BoostedEngines
    board: RolloutBoard
    watches: dict[str, RunWatch] = field(default_factory=dict)
    allow: dict[str, Allow] = field(default_factory=dict)
    views: Mapping[str, EngineView] = field(default_factory=dict)
    """What the engines did at the last look. Empty until the first one, and where they are dead."""
    looked_s: float | None = None
    """When the last look was. None before the first one."""
    free_kv_tokens: float = 0.0
    """Tokens for which there was room at the last look, beside one rollout of each run."""
    was_waiting: bool = False
    """Whether a request waited for room in an engine at the last look. Only what waits at two looks
    in a row counts: room may come with the next step."""
    waits: bool = False
    others: deque[int] = field(default_factory=lambda: deque(maxlen=OTHERS_LOOKS))
    """Sequences of other runs and requests at the last looks. The fewest count."""
    opening: Opening = field(default=Opening(budget=0, reason="nothing runs"))

    def count_own(self) -> int:
        """Sequences of the boosted runs."""
        return sum(watch.open_sequences for watch in self.watches.values())


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
        self._stations: dict[str, _Station] = {}
        self._stations_of: dict[str, _Station] = {}
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
            station = self._stations[engines.name] = _Station(
                engines=engines, board=RolloutBoard(self._allocator)
            )
        station.engines = engines
        station.board.add(watch.contender)
        station.watches[key], station.allow[key] = watch, allow
        self._stations_of[key] = station
        self._divide(station)
        self._look_soon()
        try:
            yield
        finally:
            self._count_time()
            station.board.remove(key)
            del station.watches[key], station.allow[key], self._stations_of[key]
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
                if (is_due or not self._is_recent(station)) and self._would_open(station):
                    await self._look_at(station)
                self._divide(station)
        self._daemon.pause()

    def _is_recent(self, station: _Station) -> bool:
        """Whether the last look still tells what the engines do."""
        looked_s = station.looked_s
        return looked_s is not None and self._clock() - looked_s <= 2 * self._look_s

    def _would_open(self, station: _Station) -> bool:
        """Whether the gate would let more through if the engines had room."""
        runs = station.board.runs
        if not runs:  # the last one ended during a look at another pair
            return False
        cost = self._find_cost(station)
        return self._gate.open(runs, self._allocator, IDLE, cost).budget > len(runs)

    async def _look_at(self, station: _Station) -> None:
        try:
            station.views = await station.engines.views()
        except EngineError:
            station.views = {}
        most = station.engines.max_sequences
        waiting = any(_has_no_room(view, most) for view in station.views.values())
        if not self._is_recent(station):  # nothing was cancelled a moment ago: one look is enough
            station.others.clear()
            station.was_waiting = waiting
        station.waits, station.was_waiting = waiting and station.was_waiting, waiting
        station.others.append(_count_others(station))
        station.free_kv_tokens = _count_free_tokens(station)
        station.looked_s = self._clock()

    # ------------------------------------------------------------ dividing

    def _divide(self, station: _Station) -> None:
        """Find the budget, and tell each run what changes: first those that get less."""
        self._count_time()
        runs, now_s = station.board.runs, self._clock()
        if not runs:
            return
        is_recent = self._is_recent(station)
        load = self._measure_load(station) if is_recent and station.views else IDLE
        opening = self._gate.open(runs, self._allocator, load, self._find_cost(station))
        if load is IDLE:  # nobody gets more until it is known whether there is room
            most, reason = len(runs), "the engines do not answer"
            if not is_recent:
                granted = sum(station.board.granted.values())
                most, reason = max(most, granted), "the engines are being asked"
            if opening.budget > most:
                opening = Opening(budget=most, reason=reason)
        station.opening = opening
        for move in station.board.plan(station.opening.budget, now_s):
            station.allow[move.key](move.rollouts, station.opening.budget)

    def _measure_load(self, station: _Station) -> EngineLoad:
        return EngineLoad(
            has_waiting=station.waits,
            others=min(station.others, default=0),
            free_kv_tokens=station.free_kv_tokens,
            max_sequences=int(station.engines.max_sequences * (1 - KEPT_SHARE)),
        )

    def _find_cost(self, station: _Station) -> RolloutCost | None:
        """The cost of a rollout with the lengths of these runs."""
        cost = station.engines.rollout_cost
        if cost is None:
            return None
        seen = [watch.level_tokens for watch in station.watches.values()]
        tokens, levels = sum(t for t, _ in seen), sum(count for _, count in seen)
        paths = [run.path_tokens for run in station.board.runs]
        return replace(
            cost,
            context=max(1.0, sum(paths) / len(paths)),
            level_tokens=tokens / levels if levels else LEVEL_TOKENS,
            daemon_s=self._daemon.token_s,
        )

    def _count_time(self) -> None:
        now_s = self._clock()
        if self._counted_s is not None and self._stations:
            passed_s = now_s - self._counted_s
            self.running_s += passed_s
            if any(
                sum(station.board.granted.values()) > len(station.board)
                for station in self._stations.values()
            ):
                self.open_s += passed_s
        self._counted_s = now_s if self._stations else None


def _count_others(station: _Station) -> int:
    """Sequences of the generator beside those of the boosted runs."""
    generator = station.views.get("generator")
    running = generator.running + generator.waiting if generator is not None else 0
    return max(0, running - station.count_own())


def _count_free_tokens(station: _Station) -> float:
    """Tokens that fit beside one rollout of each run: what is free, and what boosts hold."""
    free = [
        (view.quota_blocks * (1 - KEPT_SHARE) - view.blocks_used) * view.block_tokens
        for view in station.views.values()
    ]
    granted = station.board.granted
    boosts = sum(max(0, granted[r.key] - 1) * r.path_tokens for r in station.board.runs)
    return max(0.0, min(free, default=0.0) + boosts)


def _has_no_room(view: EngineView, max_sequences: int) -> bool:
    """Whether requests wait that the next step can't take: its batch or its KV memory is full."""
    is_short = view.quota_blocks * (1 - KEPT_SHARE) < view.blocks_used
    return view.waiting > 0 and (view.running >= max_sequences or is_short)
