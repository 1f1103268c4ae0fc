"""Real engines with a KV keeper, for measurements of the split and the offload."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import psutil

from flashedge.answers.workers.mathematics import MathGrader
from flashedge.config import Config, load_config
from flashedge.engine.vllm.pair import VllmPair
from flashedge.events import Event
from flashedge.models.registry import find_pair
from flashedge.optimizations import Optimizations
from flashedge.runtime.drive.driver import Driver, Outcome
from flashedge.runtime.drive.engines import Engines, build_engines
from flashedge.runtime.kv.build import build_manager_with
from flashedge.runtime.kv.curves import Curves, load_curves
from flashedge.runtime.kv.decide import ForcedSplit
from flashedge.runtime.kv.manager import KvManager
from flashedge.runtime.request.spec import RunSpec
from flashedge.runtime.request.strategies import build_search


@dataclass(frozen=True, slots=True, kw_only=True)
class Timed:
    """One search. seconds: all of it; offloads, moves: of the KV memory in it."""

    outcome: Outcome
    seconds: float
    generate_s: float
    verify_s: float
    offloads: int
    moves: int
    record: dict[str, object]


class Rig:
    """The bundled pair. kv_bytes: of both engines together; each has a pool of that size."""

    def __init__(self, pair: VllmPair, config: Config, grader: MathGrader, kv_bytes: int) -> None:
        self.pair = pair
        self.grader = grader
        self.kv_bytes = kv_bytes
        self.config = config
        self._optimizations = Optimizations.from_config(config, separate_processors=False)

    def build_engines(
        self, optimizations: Optimizations, keeper: KvManager | None = None
    ) -> Engines:
        """What a search works with. keeper: moves the KV memory; None leaves it where it is."""
        return build_engines(optimizations, self.pair, grader=self.grader, kv_manager=keeper)

    def curves(self) -> Curves:
        return load_curves(find_pair("bundled", self.config), self.config)

    async def halve(self) -> None:
        """What each engine has where nothing moves. Raises SystemExit where half of the memory does
        not hold a request of full length: the engine takes more then, and nothing compares."""
        half = self.kv_bytes // 2
        for engine in (self.pair.generator, self.pair.verifier):
            if (granted := await engine.budget(half)) > half:
                raise SystemExit(f"at least {-(-2 * granted >> 20)} MiB are needed")

    @asynccontextmanager
    async def keeper(
        self, forced: ForcedSplit | None = None, *, offload: bool = False
    ) -> AsyncIterator[KvManager]:
        """By the profile of the machine (`flashedge profile`) if there is one."""
        made = await build_manager_with(
            self.curves(),
            self.pair.generator,
            self.pair.verifier,
            kv_bytes=self.kv_bytes,
            max_batch=self.config.max_num_seqs,
            offload=offload,
            folder_bytes=1 << 34,
            forced=forced,
        )
        await made.start()
        yield made
        await made.wait_settled()
        await made.stop()
        for engine in (self.pair.generator, self.pair.verifier):
            await engine.restore()

    async def search(self, keeper: KvManager, spec: RunSpec) -> Timed:
        """One search on engines that forgot what they computed before."""
        await emptied(self.pair)
        began = time.monotonic()
        moves, offloads = keeper.moves, keeper.offloads
        engines = self.build_engines(self._optimizations, keeper)
        outcome, driver, record = await drive_search(engines, spec)
        return Timed(
            outcome=outcome,
            seconds=time.monotonic() - began,
            generate_s=driver.generating.seconds,
            verify_s=driver.scoring.waiting.seconds,
            offloads=keeper.offloads - offloads,
            moves=keeper.moves - moves,
            record=record,
        )

    def resident_bytes(self) -> dict[str, int]:
        """Of both engines' processes."""
        engines = {"generator": self.pair.generator, "verifier": self.pair.verifier}
        return {
            name: int(psutil.Process(engine.health().pid).memory_info().rss)
            for name, engine in engines.items()
        }


async def drive_search(
    engines: Engines,
    spec: RunSpec,
    emit: Callable[[Event], None] = lambda event: None,
) -> tuple[Outcome, Driver, dict[str, Any]]:
    """Run a search. Returns its driver too, and the record of its KV memory."""
    prompt = engines.generator.codec.encode_chat(spec.problem.messages)
    with engines.join_kv(emit) as memory:
        search = memory.watch(build_search(spec), len(prompt))
        driver = Driver(search, spec, prompt, engines, emit)
        outcome = await driver.run()
    return outcome, driver, memory.record


async def emptied(pair: VllmPair) -> None:
    """Until nothing is known of what was computed before."""
    for engine in (pair.generator, pair.verifier):
        await engine.offload(keep=False)
        await engine.restore()
    pair.verifier.forget_scores()


@asynccontextmanager
async def rig(kv_bytes: int, **settings: object) -> AsyncIterator[Rig]:
    """Started. settings: Config fields."""
    half = kv_bytes // 2
    config = load_config({"generator_kv_bytes": half, "verifier_kv_bytes": half, **settings})
    pair, grader = VllmPair(find_pair("bundled", config), config), MathGrader()
    await pair.start()
    try:
        yield Rig(pair, config, grader, 2 * half)
    finally:
        await pair.stop()
        await grader.close()
