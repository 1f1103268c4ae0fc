"""The KV memory of both engines while runs go on: how it is divided, and when it moves.

One manager serves all runs:

1. When a level begins or a run ends, the run reports its load. The loads of all runs are added up.
2. `scheduling.kv.split` chooses a split for this load. The current one stays unless another is
   clearly faster.
3. `KvMover` sets both engines' budgets, which `engine.vllm.inside.kv.quota` turns into blocks. The
   engine that shrinks goes first, so that the budgets never add up to more than there is. An
   engine that has no memory for a larger budget keeps the one it had. The recorded split holds
   what was granted, and the next move requests the larger budget again.
4. If the split lets the engines own the memory alternately, the manager counts the open requests of
   each. The memory changes hands when the owner has no open request, of any run, and the other
   engine has one. Until then that request waits in its engine. On a card the other engine's KV
   comes back part by part, while the owner still saves its own. It can't come back earlier: until
   its last request is over, the owner's cache fills the memory, and the next level needs it.

Steps 2 to 4 run in one background task, one move at a time. None of it changes a token.

Ref: arXiv 2509.00195 §4.3, for one run. With several, no engine becomes idle by itself.
"""

import asyncio
import logging
from collections import Counter
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import aclosing, contextmanager
from dataclasses import dataclass, replace
from typing import Any

from flashedge.engine.base import (
    Chunk,
    Codec,
    EngineProxy,
    ExtendRequest,
    Generator,
    ScoreRequest,
    Speculator,
    StepScores,
    Verifier,
)
from flashedge.engine.http_requests import Follow, PlainRequest
from flashedge.errors import FlashEdgeError
from flashedge.events import Event, KvSplitChanged, Offloaded, Restored
from flashedge.runtime.kv.curves import Curves
from flashedge.scheduling.kv.split import EngineRole, HostLink, KvMemory, KvSplit
from flashedge.scheduling.kv.stages import EngineCost, Workload, combine_loads, estimate_load
from flashedge.search.base import Command, Expand
from flashedge.search.tree import Tree

log = logging.getLogger(__name__)

NOMINAL = Workload(paths=16, context_tokens=256, live_tokens=1024, step_tokens=64)
"""The load that the memory is divided for before the first run: a default search after some steps.
Chosen by hand. It matters little, since the first level of a run replaces it."""
MAPPED = "device"
"""The value of `Health.kv_memory` with which memory goes to the other engine granule by granule."""
PARTS = 8
"""Parts in which mapped memory changes hands. Chosen by hand: two would overlap little, and dozens
would mean as many calls of each engine."""
ROUNDED_BLOCKS = 2
"""A grant may lack this many blocks: budgets are whole blocks, and vLLM never uses one block."""


@dataclass(eq=False, kw_only=True)
class RunMemory:
    """A run's part in the KV memory."""

    on_load: Callable[[], None]
    """Called when the run has another load."""
    send: Callable[[Event], None]
    """Takes the events of the run's memory."""
    prompt_tokens: int
    is_baseline: bool
    """Whether the memory must be divided evenly while the run goes on."""
    load: Workload | None = None
    split: KvSplit | None = None
    """The split in effect, or None before the run was told of one."""
    curves: str | None = None
    """See `Curves.source`."""
    split_moves: int = 0
    offloads: int = 0

    def follow(self, tree: Tree, commands: Sequence[Command]) -> None:
        """Report a new load if these commands begin a level of steps."""
        steps = [command.granularity for command in commands if isinstance(command, Expand)]
        if steps:
            self.load = estimate_load(tree, self.prompt_tokens, steps[0])
            self.on_load()

    def record_split(self, split: KvSplit, curves: str) -> None:
        """Note the split in effect. Send it if it is the run's first, or if its bytes changed."""
        last, self.split, self.curves = self.split, split, curves
        if last is not None and last.has_same_bytes(split):
            return
        self.split_moves += last is not None
        self.send(
            KvSplitChanged(
                generator_bytes=split.generator_bytes,
                verifier_bytes=split.verifier_bytes,
                decode_batch=split.decode_batch,
                prefill_batch=split.prefill_batch,
                offload=split.offload,
                predicted_s=split.seconds,
                curves=curves,
            )
        )

    def emit(self, event: Event) -> None:
        self.offloads += isinstance(event, Offloaded)
        self.send(event)

    @property
    def record(self) -> dict[str, Any]:
        """What the run's result says of its memory, as the field `kv`."""
        split = self.split
        return {
            "curves": self.curves,
            "generator_bytes": split and split.generator_bytes,
            "verifier_bytes": split and split.verifier_bytes,
            "offload": split is not None and split.offload,
            "split_moves": self.split_moves,
            "offloads": self.offloads,
        }


class FixedMemory:
    """Stands in for RunMemory without a KV manager, where budgets stay as at the engines' start."""

    def follow(self, tree: Tree, commands: Sequence[Command]) -> None: ...

    @property
    def record(self) -> dict[str, Any]:
        return {"curves": None}


class KvManager:
    """Divides the KV memory of one pair's engines for all of its runs."""

    def __init__(
        self,
        generator: Generator,
        verifier: Verifier,
        costs: tuple[EngineCost, EngineCost],
        curves: Curves,
        *,
        kv_bytes: int,
        link: HostLink | None,
    ) -> None:
        """kv_bytes: the memory of both engines. Without `link` nothing is offloaded."""
        self._curves = curves
        self._memory = KvMemory(generator=costs[0], verifier=costs[1], kv_bytes=kv_bytes, link=link)
        block_bytes = [cost.kv_bytes_per_token * cost.block_tokens for cost in costs]
        self.mover = KvMover(
            {EngineRole.GENERATOR: generator, EngineRole.VERIFIER: verifier},
            dict(zip(EngineRole, block_bytes, strict=True)),
            self._emit,
        )
        self._runs: dict[RunMemory, None] = {}
        self._open: Counter[EngineRole] = Counter()
        self._owner = EngineRole.GENERATOR
        self._split = self._memory.split_evenly()
        self._load = NOMINAL
        """Of all runs. After the last run its load stays."""
        self._plain_requests = 0  # open requests outside any run
        self._is_stale = False
        self._task: asyncio.Task[None] | None = None

    # ------------------------------------------------------------ for the service

    async def start(self) -> None:
        self._request_update()
        await self.wait_settled()

    async def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait({self._task})

    async def wait_settled(self) -> None:
        while self._task is not None and not self._task.done():
            await asyncio.wait({self._task})

    @contextmanager
    def count_plain_request(self, role: EngineRole = EngineRole.GENERATOR) -> Iterator[None]:
        """Count a request outside any run while it is open. Meanwhile no split with offload is
        chosen, since a stream of such requests could keep a run from ever being scored."""
        self._plain_requests += 1
        if self._split.offload:
            self._request_update()
        try:
            with self.count_request(role):
                yield
        finally:
            self._plain_requests -= 1

    @contextmanager
    def watch_plain_request(self, ask: PlainRequest) -> Iterator[Follow]:
        """Count a request that `PlainRequests` opens. Its outputs don't matter here."""
        role = EngineRole.VERIFIER if ask.is_score else EngineRole.GENERATOR
        with self.count_plain_request(role):
            yield lambda *output: None

    @contextmanager
    def join(
        self, emit: Callable[[Event], None], prompt_tokens: int, *, is_baseline: bool
    ) -> Iterator[RunMemory]:
        """Register a run for the block. While a baseline run is registered, the memory is divided
        evenly for all runs."""
        run = RunMemory(
            on_load=self._update_load,
            send=emit,
            prompt_tokens=prompt_tokens,
            is_baseline=is_baseline,
        )
        self._runs[run] = None
        try:
            yield run
        finally:
            del self._runs[run]
            self._update_load()

    # ------------------------------------------------------------ what triggers an update

    def _update_load(self) -> None:
        load = combine_loads(run.load for run in self._runs if run.load is not None)
        if load is not None:
            self._load = load
            self._request_update()

    @contextmanager
    def count_request(self, role: EngineRole) -> Iterator[None]:
        """Count a request to an engine while it is open."""
        self._open[role] += 1
        self._check_owner()
        try:
            yield
        finally:
            self._open[role] -= 1
            self._check_owner()

    @property
    def next_owner(self) -> EngineRole:
        """The engine that should own the memory now, if the engines alternate."""
        other = self._owner.other
        return other if self._open[other] and not self._open[self._owner] else self._owner

    def _check_owner(self) -> None:
        if self.mover.offloaded is self.next_owner:
            self._request_update()

    def _request_update(self) -> None:
        self._is_stale = True
        if self._task is None or self._task.done():
            self._task = asyncio.get_running_loop().create_task(self._run(), name="kv-memory")

    # ------------------------------------------------------------ the background task

    async def _run(self) -> None:
        try:
            while self._is_stale:
                self._is_stale = False
                await self._update()
        except Exception:  # nobody awaits this task
            log.exception("the KV memory could not be moved")

    async def _update(self) -> None:
        split, mover = self._decide(), self.mover
        if split.offload and mover.offloaded is None:
            await mover.offload(self.next_owner.other, split)
        last, self._split = self._split, split
        self._split = await mover.divide(last, split)
        for run in self._runs:
            run.record_split(self._split, self._curves.source)
        await self._hand_over()

    def _decide(self) -> KvSplit:
        if any(run.is_baseline for run in self._runs):
            return self._memory.split_evenly()
        return self.choose_split(self._load)

    def choose_split(self, load: Workload) -> KvSplit:
        """Choose the split for a load of all runs. Measurements replace this method."""
        link = None if self._plain_requests else self._memory.link
        memory = replace(self._memory, link=link)
        return memory.decide_split(load, self._split, self.mover.division_s)

    async def _hand_over(self) -> None:
        """Restore the engine that should own the memory; offload the other if they alternate."""
        owner, mover, split = self.next_owner, self.mover, self._split
        if split.offload and mover.offloaded is owner:
            await mover.offload(owner.other, split, returning=owner)
            await mover.restore(owner)
        elif not split.offload and mover.offloaded is not None:
            await mover.restore(mover.offloaded)
        self._owner = owner
        self._check_owner()  # requests may have opened and closed meanwhile

    def _emit(self, event: Event) -> None:
        for run in self._runs:
            run.emit(event)


# ---------------------------------------------------------------- what moves the memory


class KvMover:
    """Sets the engines' budgets, and offloads and restores their KV. An engine's errors are only
    logged: one that is down gets its budget once it serves again."""

    def __init__(
        self,
        engines: Mapping[EngineRole, Generator | Verifier],
        block_bytes: Mapping[EngineRole, int],
        emit: Callable[[Event], None],
    ) -> None:
        self._engines = engines
        self._block_bytes = block_bytes
        self._emit = emit
        self._granted: dict[EngineRole, tuple[int, int]] = {}  # (bytes, restarts of the engine)
        self.offloaded: EngineRole | None = None
        """The engine whose KV is in host memory or dropped. Its requests wait."""
        self.offloads = 0
        self._returned_bytes = 0
        """Loaded during the offload of the other engine."""
        self.divisions = 0
        self._dividing_s = 0.0

    @property
    def division_s(self) -> float:
        """Mean seconds of a division. 0 before the first."""
        return self._dividing_s / max(1, self.divisions)

    async def divide(self, last: KvSplit, split: KvSplit) -> KvSplit:
        """Change the budgets from `last` to `split`, the one that shrinks most first. Returns the
        split in effect, in which a refused budget is the engine's present one."""
        generator, verifier = EngineRole.GENERATOR, EngineRole.VERIFIER
        wanted = {generator: split.generator_bytes, verifier: split.verifier_bytes}
        before = {generator: last.generator_bytes, verifier: last.verifier_bytes}
        clock = asyncio.get_running_loop().time
        began = clock()
        given: dict[EngineRole, int] = {}
        for role in sorted(wanted, key=lambda role: wanted[role] - before[role]):
            given[role] = await self._set_budget(role, wanted[role])
        split = replace(split, generator_bytes=given[generator], verifier_bytes=given[verifier])
        if not last.has_same_bytes(split):
            self.divisions += 1
            self._dividing_s += clock() - began
        return split

    async def offload(
        self, role: EngineRole, split: KvSplit, returning: EngineRole | None = None
    ) -> None:
        """returning: the engine that gets the memory. Mapped memory changes hands in `PARTS`: while
        one part is saved and given up, the KV of `returning` comes back into the part before."""
        is_generator, engine = role is EngineRole.GENERATOR, self._engines[role]
        keep = split.generator_saved if is_generator else split.verifier_saved
        clock = asyncio.get_running_loop().time
        began, saved = clock(), 0
        parts = PARTS if returning and engine.health().kv_memory == MAPPED else 1
        for part in range(1, parts + 1):
            moves = [engine.offload(keep=keep, share=part / parts)]
            if returning and part > 1:
                moves.append(self._engines[returning].restore(share=(part - 1) / parts))
            found = await asyncio.gather(*map(self._request, moves))
            saved += found[0] or 0
            self._returned_bytes += sum(moved or 0 for moved in found[1:])
        self.offloaded = role
        self.offloads += 1
        self._emit(Offloaded(engine=role.value, saved_bytes=saved, seconds=clock() - began))

    async def restore(self, role: EngineRole) -> None:
        clock = asyncio.get_running_loop().time
        began, returned = clock(), await self._request(self._engines[role].restore())
        loaded, self._returned_bytes = (returned or 0) + self._returned_bytes, 0
        if self.offloaded is role:
            self.offloaded = None
        self._emit(Restored(engine=role.value, loaded_bytes=loaded, seconds=clock() - began))
        await self._check_quota(role)

    async def _set_budget(self, role: EngineRole, kv_bytes: int) -> int:
        """Return the bytes in effect: `kv_bytes`, or less if the engine has no memory for more."""
        engine = self._engines[role]
        restarts = engine.health().restarts
        if self._granted.get(role) == (kv_bytes, restarts):
            return kv_bytes
        self._granted.pop(role, None)
        granted = await self._request(engine.budget(kv_bytes))
        if granted is None:
            view = await self._request(engine.view())
            if view is None:
                return kv_bytes  # the engine is down: the next process gets it
            granted = view.quota_blocks * view.block_bytes  # it refused
        if self._is_short(role, granted, kv_bytes):
            return int(granted)
        self._granted[role] = kv_bytes, restarts
        return kv_bytes

    async def _check_quota(self, role: EngineRole) -> None:
        """Forget the recorded budget if the engine had to resume with a smaller one."""
        if role in self._granted and (view := await self._request(self._engines[role].view())):
            kv_bytes, _ = self._granted[role]
            if self._is_short(role, view.quota_blocks * view.block_bytes, kv_bytes):
                del self._granted[role]

    def _is_short(self, role: EngineRole, granted: int, kv_bytes: int) -> bool:
        return granted + ROUNDED_BLOCKS * self._block_bytes[role] < kv_bytes

    async def _request(self, request: Awaitable[Any]) -> Any:
        """Wait for the engine's answer. None if it is down or the request failed."""
        try:
            return await request
        except FlashEdgeError as error:
            log.warning("the KV memory of an engine was not moved: %s", error.line)
            return None


# ---------------------------------------------------------------- what counts requests


class CountedGenerator(EngineProxy[Generator]):
    def __init__(self, engine: Generator, manager: KvManager) -> None:
        super().__init__(engine)
        self._manager = manager

    @property
    def speculator(self) -> Speculator | None:
        return self._engine.speculator

    @property
    def most_drafted(self) -> int:
        return self._engine.most_drafted

    @property
    def codec(self) -> Codec:
        return self._engine.codec

    async def extend(self, request: ExtendRequest) -> AsyncGenerator[Chunk]:
        with self._manager.count_request(EngineRole.GENERATOR):
            async with aclosing(self._engine.extend(request)) as stream:
                async for chunk in stream:
                    yield chunk


class CountedVerifier(EngineProxy[Verifier]):
    def __init__(self, engine: Verifier, manager: KvManager) -> None:
        super().__init__(engine)
        self._manager = manager

    async def score(self, request: ScoreRequest) -> StepScores:
        with self._manager.count_request(EngineRole.VERIFIER):
            return await self._engine.score(request)
