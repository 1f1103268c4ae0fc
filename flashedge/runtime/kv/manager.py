"""The KV memory of both engines while runs go on: how it is divided, and when it moves.

One manager serves all runs:

1. When a level begins or a run ends, the run reports its load (`run_memory`). The loads of all runs
   are added up.
2. `decide` chooses a split for this load. The current one stays unless another is clearly faster.
3. `mover` sets both engines' budgets, the shrinking engine first. What a budget means for blocks
   and their memory is decided inside the engine: see `engine.vllm.inside.kv.quota`.
4. If the split lets the engines own the memory alternately, the manager counts open requests
   (`counted_engines`). When none is open for the owner and some are for the other engine, the owner
   is offloaded and the other restored (`scheduling.kv.ownership`).

Steps 2 to 4 run in one background task, one move at a time. None of it changes a token.

Ref: arXiv 2509.00195 §4.3.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from flashedge.engine.base import Generator, Verifier
from flashedge.events import Event
from flashedge.runtime.kv.counted_engines import CountedGenerator, CountedVerifier
from flashedge.runtime.kv.curves import Curves
from flashedge.runtime.kv.decide import ForcedSplit, SplitDecider
from flashedge.runtime.kv.mover import KvMover
from flashedge.runtime.kv.run_memory import RunMemory
from flashedge.scheduling.kv.loads import combine_loads
from flashedge.scheduling.kv.ownership import EngineRole, Ownership
from flashedge.scheduling.kv.split import HostLink, KvSplit
from flashedge.scheduling.kv.stages import EngineCost, Workload

log = logging.getLogger(__name__)

NOMINAL = Workload(paths=16, context_tokens=256, live_tokens=1024, step_tokens=64)
"""The load that the memory is divided for before the first run."""


class KvManager:
    """Divides the KV memory between both engines for all runs."""

    def __init__(
        self,
        generator: Generator,
        verifier: Verifier,
        costs: tuple[EngineCost, EngineCost],
        curves: Curves,
        *,
        kv_bytes: int,
        link: HostLink | None,
        forced: ForcedSplit | None = None,
    ) -> None:
        """`kv_bytes` is the memory of both engines. Without `link` nothing is offloaded."""
        self._curves = curves
        self._decider = SplitDecider(costs, kv_bytes=kv_bytes, link=link, forced=forced)
        self._mover = KvMover(
            {EngineRole.GENERATOR: generator, EngineRole.VERIFIER: verifier},
            {
                role: cost.kv_bytes_per_token * cost.block_tokens
                for role, cost in zip(EngineRole, costs, strict=True)
            },
            self._emit,
        )
        self._runs: dict[RunMemory, None] = {}
        self._ownership = Ownership()
        self._split = self._decider.split_evenly()
        self._load: Workload | None = NOMINAL
        self._plain_requests = 0  # open requests outside any run
        self._is_stale = False
        self._task: asyncio.Task[None] | None = None

    @property
    def moves(self) -> int:
        """How often the memory was divided anew."""
        return self._mover.costs.divisions

    @property
    def offloads(self) -> int:
        return self._mover.offloads

    # ------------------------------------------------------------ for the service

    async def start(self) -> None:
        """Divide the memory before the first run."""
        self._request_update()
        await self.wait_settled()

    async def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait({self._task})

    async def wait_settled(self) -> None:
        """Return once nothing moves."""
        while self._task is not None and not self._task.done():
            await asyncio.wait({self._task})

    def wrap_generator(self, engine: Generator) -> Generator:
        """Count the requests that runs send to this engine."""
        return CountedGenerator(engine, lambda: self._count_request(EngineRole.GENERATOR))

    def wrap_verifier(self, engine: Verifier) -> Verifier:
        """Count the requests that runs send to this engine."""
        return CountedVerifier(engine, lambda: self._count_request(EngineRole.VERIFIER))

    @contextmanager
    def count_plain_request(self, role: EngineRole = EngineRole.GENERATOR) -> Iterator[None]:
        """Count a request outside any run, for as long as the context is open.

        While one is open nothing is offloaded: a stream of them could keep a run from being scored
        for ever.
        """
        self._plain_requests += 1
        if self._split.offload:
            self._request_update()
        try:
            with self._count_request(role):
                yield
        finally:
            self._plain_requests -= 1

    @contextmanager
    def join(self, emit: Callable[[Event], None], *, baseline: bool) -> Iterator[RunMemory]:
        """Register a run for as long as the context is open. It receives the events of all moves.

        While a baseline run is registered, the memory is divided evenly for all runs.
        """
        run = RunMemory(self._update_load, emit, baseline=baseline)
        self._runs[run] = None
        try:
            yield run
        finally:
            del self._runs[run]
            self._update_load()

    # ------------------------------------------------------------ what triggers an update

    def _update_load(self) -> None:
        """A run has another load, or is over."""
        self._load = combine_loads(run.load for run in self._runs if run.load is not None)
        if self._load is not None:
            self._request_update()

    @contextmanager
    def _count_request(self, role: EngineRole) -> Iterator[None]:
        self._ownership = self._ownership.open_request(role)
        self._check_owner()
        try:
            yield
        finally:
            self._ownership = self._ownership.close_request(role)
            self._check_owner()

    def _check_owner(self) -> None:
        """Request an update if the engine that should own the memory is offloaded."""
        if self._mover.offloaded is not None and self._mover.offloaded is self._next_owner:
            self._request_update()

    def _request_update(self) -> None:
        self._is_stale = True
        if self._task is None or self._task.done():
            self._task = asyncio.get_running_loop().create_task(self._run(), name="kv-memory")

    # ------------------------------------------------------------ the background task

    async def _run(self) -> None:
        """Update until nothing new was requested."""
        try:
            while self._is_stale:
                self._is_stale = False
                await self._update()
        except Exception:  # nobody awaits this task: log, keep the split, let runs go on
            log.exception("the KV memory could not be moved")

    async def _update(self) -> None:
        split, mover = self._decide(), self._mover
        if split.offload and mover.offloaded is None:
            await mover.offload(self._next_owner.other, split)
        last, self._split = self._split, split
        self._split = await mover.divide(last, split)
        for run in self._runs:
            run.record_split(self._split, self._curves.source)
        await self._hand_over()

    def _decide(self) -> KvSplit:
        if self._load is None:
            return self._split
        if any(run.baseline for run in self._runs):
            return self._decider.split_evenly()
        return self._decider.decide(
            self._load, self._split, self._mover.costs, may_offload=not self._plain_requests
        )

    async def _hand_over(self) -> None:
        """Restore the engine that should own the memory; offload the other if they alternate."""
        owner, mover, split = self._next_owner, self._mover, self._split
        if split.offload and mover.offloaded is owner:
            await mover.offload(owner.other, split)
            await mover.restore(owner)
        elif not split.offload and mover.offloaded is not None:
            await mover.restore(mover.offloaded)
        self._ownership = self._ownership.give_to(owner)
        self._check_owner()  # requests may have opened and closed meanwhile

    @property
    def _next_owner(self) -> EngineRole:
        return self._ownership.next_owner

    def _emit(self, event: Event) -> None:
        for run in self._runs:
            run.emit(event)
