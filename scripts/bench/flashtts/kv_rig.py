"""Real engines with a KV manager, to measure the split and the offload."""

import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import psutil

from flashedge.answers.workers.mathematics import MathGrader
from flashedge.config import Config, load_config
from flashedge.engine.memory_plan import find_max_sequences
from flashedge.engine.vllm.pair import VllmPair
from flashedge.events import Event
from flashedge.models.registry import find_pair
from flashedge.optimizations import Optimizations
from flashedge.runtime.drive.driver import Driver, Outcome
from flashedge.runtime.drive.engines import Engines, build_engines
from flashedge.runtime.kv.build import build_manager_with
from flashedge.runtime.kv.curves import Curves, load_curves
from flashedge.runtime.kv.manager import KvManager
from flashedge.runtime.request.strategies import build_search
from flashedge.runtime.request.validation import Request
from flashedge.scheduling.kv.split import KvSplit
from flashedge.scheduling.kv.stages import Workload


@dataclass(frozen=True, slots=True, kw_only=True)
class TimedSearch:
    """One search, with what happened to the KV memory meanwhile."""

    outcome: Outcome
    seconds: float
    """The whole search."""
    generate_s: float
    verify_s: float
    offloads: int
    moves: int
    """How often the memory was divided anew."""
    record: dict[str, object]


class Rig:
    """The bundled pair, with `kv_bytes` for both engines. Each has a pool of that size."""

    def __init__(self, pair: VllmPair, config: Config, grader: MathGrader, kv_bytes: int) -> None:
        self.pair = pair
        self.grader = grader
        self.kv_bytes = kv_bytes
        self.config = config
        self._optimizations = Optimizations.from_features(
            config.features, separate_processors=False
        )

    def build_engines(
        self, optimizations: Optimizations, manager: KvManager | None = None
    ) -> Engines:
        """Build what a search works with. Without `manager` the KV memory does not move."""
        return build_engines(optimizations, self.pair, grader=self.grader, kv_manager=manager)

    def load_curves(self) -> Curves:
        return load_curves(find_pair("bundled", self.config), self.config)

    async def give_halves(self) -> None:
        """Give each engine half of the memory, for measurements in which nothing moves.

        Raises SystemExit if half does not hold a request of full length. The engine would take
        more, and the measurements would not compare.
        """
        half = self.kv_bytes // 2
        for engine in (self.pair.generator, self.pair.verifier):
            if (granted := await engine.budget(half)) > half:
                raise SystemExit(f"at least {-(-2 * granted >> 20)} MiB are needed")

    @asynccontextmanager
    async def run_manager(
        self, forced: Callable[[Workload], KvSplit] | None = None, *, offload: bool = False
    ) -> AsyncIterator[KvManager]:
        """Run a KV manager, with the machine's profile (`flashedge profile`) if there is one."""
        manager = await build_manager_with(
            self.load_curves(),
            self.pair.generator,
            self.pair.verifier,
            kv_bytes=self.kv_bytes,
            max_batch=find_max_sequences(self.config),
            offload=offload,
            folder_bytes=1 << 34,
        )
        if forced is not None:
            manager.choose_split = forced  # type: ignore[method-assign,assignment]
        await manager.start()
        yield manager
        await manager.wait_settled()
        await manager.stop()
        for engine in (self.pair.generator, self.pair.verifier):
            await engine.restore()

    async def search(self, manager: KvManager, spec: Request) -> TimedSearch:
        """Run one search on engines that have forgotten everything."""
        await forget_kv(self.pair)
        began = time.monotonic()
        moves, offloads = manager.mover.divisions, manager.mover.offloads
        engines = self.build_engines(self._optimizations, manager)
        outcome, driver, record = await drive_search(engines, spec)
        return TimedSearch(
            outcome=outcome,
            seconds=time.monotonic() - began,
            generate_s=driver.generating.seconds,
            verify_s=driver.scoring.waiting.seconds,
            offloads=manager.mover.offloads - offloads,
            moves=manager.mover.divisions - moves,
            record=record,
        )

    def read_resident_bytes(self) -> dict[str, int]:
        """Resident memory of both engines' processes."""
        engines = {"generator": self.pair.generator, "verifier": self.pair.verifier}
        return {
            name: int(psutil.Process(engine.health().pid).memory_info().rss)
            for name, engine in engines.items()
        }


async def drive_search(
    engines: Engines, spec: Request, emit: Callable[[Event], None] = lambda event: None
) -> tuple[Outcome, Driver, dict[str, Any]]:
    """Run a search. Returns its driver too, and the record of its KV memory."""
    prompt = engines.generator.codec.encode_chat(spec.problem.messages)
    with engines.join_kv(emit, len(prompt)) as memory:
        search = build_search(spec)
        driver = Driver(search, spec, prompt, engines, emit, on_turn=memory.follow)
        outcome = await driver.run()
    return outcome, driver, memory.record


async def forget_kv(pair: VllmPair) -> None:
    """Drop the KV of both engines, and the verifier's scores."""
    for engine in (pair.generator, pair.verifier):
        await engine.offload(keep=False)
        await engine.restore()
    pair.verifier.clear_score_cache()


@asynccontextmanager
async def rig(kv_bytes: int, **settings: object) -> AsyncIterator[Rig]:
    """Start the pair. `settings` are fields of Config."""
    half = kv_bytes // 2
    config = load_config({"kv_bytes": half, **settings})
    pair, grader = VllmPair(find_pair("bundled", config), config), MathGrader()
    await pair.start()
    try:
        yield Rig(pair, config, grader, 2 * half)
    finally:
        await pair.stop()
        await grader.close()
