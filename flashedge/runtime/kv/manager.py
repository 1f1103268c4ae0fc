"""The KV memory of both engines while runs go on: who has how much of it, and when it moves.

Asked anew when a level begins or a run ends: `scheduling.kv_split` decides, with hysteresis, and
the engines' budgets follow. Where it is faster that each engine has all of the memory in turn, the
turn passes when nobody waits for the engine that has it (`scheduling.phases`). None of it changes
a token.

Ref: arXiv 2509.00195 §4.3.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

from flashedge.engine.base import Generator, Verifier
from flashedge.errors import ConfigError, FlashEdgeError
from flashedge.events import Event, Offloaded, Restored
from flashedge.runtime.kv.curves import Curves
from flashedge.runtime.kv.run_memory import RunMemory, same_bytes
from flashedge.runtime.kv.shared_engines import SharedGenerator, SharedVerifier
from flashedge.scheduling.kv.loads import together
from flashedge.scheduling.kv.split import (
    HostLink,
    KvSplit,
    best_split,
    halves,
    predicted,
    refitted,
    settled,
)
from flashedge.scheduling.kv.stages import EngineCost, Workload
from flashedge.scheduling.kv.turns import Phase, Phases

log = logging.getLogger(__name__)

NAMES = {Phase.GENERATE: "generator", Phase.VERIFY: "verifier"}
MEASURED_BYTES = 4 << 20  # that must have moved before the link's own speed is believed
NOMINAL = Workload(paths=16, context_tokens=256, live_tokens=1024, step_tokens=64)
Split = Callable[[Workload | None], KvSplit]


@dataclass(slots=True)
class _Moved:
    """What went over the link so far, and what it took to divide the memory anew."""

    moved_bytes: int = 0
    seconds: float = 0.0
    divided_s: float = 0.0


class KvManager:
    """One for both engines and all runs. kv_bytes: what they have together; link: how KV gets to
    host memory, None: it never does. `forced`: decides instead of the search (for measurements)."""

    def __init__(
        self,
        generator: Generator,
        verifier: Verifier,
        costs: tuple[EngineCost, EngineCost],
        curves: Curves,
        *,
        kv_bytes: int,
        link: HostLink | None,
        forced: Split | None = None,
    ) -> None:
        self._engines: Mapping[Phase, Generator | Verifier] = {
            Phase.GENERATE: generator,
            Phase.VERIFY: verifier,
        }
        self._costs = costs
        self._curves = curves
        self._kv_bytes = kv_bytes
        self._link = link
        self._forced = forced
        self._moved = _Moved()
        self._runs: dict[RunMemory, None] = {}
        self._phases = Phases()
        self._away: Phase | None = None
        self._budgets: dict[Phase, int] = {}
        self._split = self._halves()
        self._load: Workload | None = NOMINAL
        self._guests = 0
        self._dirty = False
        self._task: asyncio.Task[None] | None = None
        self.moves = 0
        self.offloads = 0

    # ------------------------------------------------------------ for the service

    async def start(self) -> None:
        """Divide the memory before the first run."""
        self._kick()
        await self.settled()

    async def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait({self._task})

    async def settled(self) -> None:
        """Until nothing moves."""
        while self._task is not None and not self._task.done():
            await asyncio.wait({self._task})

    def generator(self, engine: Generator) -> Generator:
        return SharedGenerator(engine, lambda: self._open(Phase.GENERATE))

    def guest(self, engine: Generator) -> Generator:
        """For requests that belong to no run. While one is open no turns are taken: guests could
        keep a run's scoring waiting for ever."""
        return SharedGenerator(engine, self._host)

    def verifier(self, engine: Verifier) -> Verifier:
        return SharedVerifier(engine, lambda: self._open(Phase.VERIFY))

    @contextmanager
    def join(self, emit: Callable[[Event], None], *, baseline: bool) -> Iterator[RunMemory]:
        """A run, for as long as it goes on. emit: told of what moves; baseline: it wants half and
        half, and while it runs all have that."""
        run = RunMemory(self.changed, emit, baseline=baseline)
        self._runs[run] = None
        try:
            yield run
        finally:
            del self._runs[run]
            self.changed()

    # ------------------------------------------------------------ what happens

    def changed(self) -> None:
        """A run has another load, or is over."""
        self._load = together(run.load for run in self._runs if run.load is not None)
        if self._load is not None:
            self._kick()

    @contextmanager
    def _open(self, phase: Phase) -> Iterator[None]:
        self._phases = self._phases.opened(phase)
        self._look()
        try:
            yield
        finally:
            self._phases = self._phases.closed(phase)
            self._look()

    @contextmanager
    def _host(self) -> Iterator[None]:
        self._guests += 1
        if self._split.offload:
            self._kick()
        try:
            with self._open(Phase.GENERATE):
                yield
        finally:
            self._guests -= 1

    def _look(self) -> None:
        if self._away is not None and self._phases.due is self._away:
            self._kick()

    def _kick(self) -> None:
        self._dirty = True
        if self._task is None or self._task.done():
            self._task = asyncio.get_running_loop().create_task(self._settle(), name="kv-memory")

    # ------------------------------------------------------------ deciding

    def _halves(self) -> KvSplit:
        return halves(self._kv_bytes, generator=self._costs[0], verifier=self._costs[1])

    def _decided(self, load: Workload) -> KvSplit:
        """Half and half too where the memory does not hold one path of each."""
        if any(run.baseline for run in self._runs):
            return self._halves()
        if self._forced is not None:
            return self._forced(load)
        costs: dict[str, Any] = {"generator": self._costs[0], "verifier": self._costs[1]}
        link = None if self._guests else self._measured_link()
        try:
            new = best_split(load, kv_bytes=self._kv_bytes, link=link, **costs)
        except ConfigError:
            return self._halves()
        last_s = predicted(self._split, load, link=link, **costs)
        move_s = self._moved.divided_s / max(1, self.moves)
        chosen = settled(self._split, new, last_s=last_s, move_s=move_s)
        return new if chosen is new else refitted(chosen, load, link=link, **costs)

    def _measured_link(self) -> HostLink | None:
        moved = self._moved
        if self._link is None or moved.moved_bytes < MEASURED_BYTES:
            return self._link
        return replace(self._link, bytes_per_s=moved.moved_bytes / moved.seconds)

    # ------------------------------------------------------------ moving

    async def _settle(self) -> None:
        """One at a time: until what is decided and whose turn it is are so."""
        try:
            while self._dirty:
                self._dirty = False
                await self._move()
        except Exception:  # a task that nobody awaits: the split stays, runs go on, the log has it
            log.exception("KV memory")

    async def _move(self) -> None:
        load = self._load
        split = self._split if load is None else self._decided(load)
        if split.offload and self._away is None:
            await self._send_away(self._phases.due.other, split)
        await self._divide(split)
        await self._pass_turn(split)

    async def _divide(self, split: KvSplit) -> None:
        last, self._split = self._split, split
        shares = [  # bytes alone: a limit on the batch held back more than preemption costs
            (Phase.GENERATE, split.generator_bytes, last.generator_bytes),
            (Phase.VERIFY, split.verifier_bytes, last.verifier_bytes),
        ]
        shares.sort(key=lambda share: share[1] - share[2])  # who gives, before who takes
        clock = asyncio.get_running_loop().time
        began = clock()
        for phase, kv_bytes, _ in shares:
            if self._budgets.get(phase) != kv_bytes:
                self._budgets[phase] = kv_bytes
                await self._asked(self._engines[phase].budget(kv_bytes))
        if not same_bytes(last, split):
            self.moves += 1
            self._moved.divided_s += clock() - began
        for run in self._runs:
            run.split_is(split, self._curves.source)

    async def _pass_turn(self, split: KvSplit) -> None:
        due = self._phases.due
        if split.offload and self._away is due:
            await self._send_away(due.other, split)
            await self._bring_back(due)
        elif not split.offload and self._away is not None:
            await self._bring_back(self._away)
        self._phases = replace(self._phases, turn=due)
        self._look()  # it may have passed on meanwhile

    async def _send_away(self, phase: Phase, split: KvSplit) -> None:
        keep = split.generator_saved if phase is Phase.GENERATE else split.verifier_saved
        seconds, saved = await self._timed(self._engines[phase].offload(keep=keep))
        self._away = phase
        self.offloads += 1
        self._tell(Offloaded(engine=NAMES[phase], saved_bytes=saved, seconds=seconds))

    async def _bring_back(self, phase: Phase) -> None:
        seconds, loaded = await self._timed(self._engines[phase].restore())
        if self._away is phase:
            self._away = None
        self._tell(Restored(engine=NAMES[phase], loaded_bytes=loaded, seconds=seconds))

    async def _timed(self, moving: Any) -> tuple[float, int]:
        """(seconds, bytes) of a move."""
        clock = asyncio.get_running_loop().time
        began = clock()
        moved = int(await self._asked(moving) or 0)
        seconds = clock() - began
        if moved:
            self._moved.moved_bytes += moved
            self._moved.seconds += seconds
        return seconds, moved

    async def _asked(self, asking: Any) -> Any:
        """What the engine answers; None of one that is down: it does what it was asked for when it
        is back."""
        try:
            return await asking
        except FlashEdgeError as error:
            log.warning("KV memory: %s", error.line)
            return None

    def _tell(self, event: Event) -> None:
        for run in self._runs:
            run.tell(event)
