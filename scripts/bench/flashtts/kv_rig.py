"""Real engines, with a KV manager or without, to measure searches on."""

import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from typing import Any

import psutil

from flashedge.answers.workers.mathematics import MathGrader
from flashedge.config import Config, load_config
from flashedge.engine.memory_plan import find_max_sequences
from flashedge.engine.vllm.pair import VllmPair
from flashedge.events import Event, KvSplitChanged, NodesMarked, Offloaded, Restored
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
from flashedge.search.tree import Tree
from flashedge.search.voting import Search
from flashedge.types import NodeId, Speculation
from scripts.lab.benchmark.ladder import compute_goodput


@dataclass(frozen=True, slots=True, kw_only=True)
class TimedSearch:
    """One search on engines that had forgotten everything."""

    outcome: Outcome
    seconds: float
    """The whole search."""
    generate_s: float
    verify_s: float
    goodput: float
    reuse: float
    """Share of the verifier's tokens whose KV was reused."""
    did: Speculation
    counters: Mapping[str, int]
    """By how much those of the engines grew: `Rig.read_counters`."""
    moved_bytes: int
    """KV memory that went from one engine to the other, and KV that was saved and loaded."""
    record: Mapping[str, Any]
    """What the run's result says of its memory."""

    @property
    def tree(self) -> Tree:
        return self.outcome.tree


class Rig:
    """A pair with `kv_bytes` for both engines. Each has a pool of that size if memory moves."""

    def __init__(
        self, name: str, pair: VllmPair, config: Config, grader: MathGrader, kv_bytes: int
    ) -> None:
        self.name = name
        self.pair = pair
        self.grader = grader
        self.kv_bytes = kv_bytes
        self.config = config
        self._searches = 0

    def build_engines(
        self, optimizations: Optimizations, manager: KvManager | None = None
    ) -> Engines:
        """Build what a search works with. Without `manager` the KV memory does not move."""
        return build_engines(optimizations, self.pair, grader=self.grader, kv_manager=manager)

    def load_curves(self) -> Curves:
        return load_curves(find_pair(self.name, self.config), self.config)

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
        self,
        forced: Callable[[Workload], KvSplit] | None = None,
        *,
        offload: bool = False,
        kv_bytes: int | None = None,
    ) -> AsyncIterator[KvManager]:
        """Run a KV manager, with the machine's profile (`flashedge profile`) if there is one.
        kv_bytes: what it divides, if not all."""
        manager = await build_manager_with(
            self.load_curves(),
            self.pair.generator,
            self.pair.verifier,
            kv_bytes=kv_bytes or self.kv_bytes,
            max_batch=find_max_sequences(self.config),
            offload=offload,
        )
        if forced is not None:
            manager.choose_split = forced  # type: ignore[method-assign,assignment]
        await manager.start()
        yield manager
        await manager.wait_settled()
        await manager.stop()
        for engine in (self.pair.generator, self.pair.verifier):
            await engine.restore()

    async def search(
        self,
        spec: Request,
        way: Optimizations,
        manager: KvManager | None = None,
        *,
        client: str = "",
    ) -> TimedSearch:
        """Run one search, a program of its own, on engines whose caches are empty. client: who
        asks. The engine knows the texts of the client's earlier searches."""
        await forget_kv(self.pair)
        self._searches += 1
        engines = self.build_engines(way, manager)
        engines = replace(engines, program=f"search-{self._searches}", client=client)
        clock, done_s, moved_bytes, share = time.monotonic, dict[NodeId, float](), 0, None

        def note(event: Event) -> None:
            nonlocal moved_bytes, share
            match event:
                case NodesMarked(status="complete", nodes=nodes):
                    done_s.update(dict.fromkeys(nodes, clock() - began))
                case Offloaded(saved_bytes=size) | Restored(loaded_bytes=size):
                    moved_bytes += size
                case KvSplitChanged(generator_bytes=size):
                    moved_bytes += abs(size - (size if share is None else share))
                    share = size

        before, began = await self.read_counters(), clock()
        outcome, driver, record = await drive_search(engines, spec, note)
        seconds, after = clock() - began, await self.read_counters()
        tree = outcome.tree
        return TimedSearch(
            outcome=outcome,
            seconds=seconds,
            generate_s=driver.generating.seconds,
            verify_s=driver.scoring.waiting.seconds,
            goodput=compute_goodput([tree[node].path_tokens for node in done_s], done_s.values()),
            reuse=driver.scoring.cached_tokens / max(1, driver.scoring.tokens),
            did=driver.speculation,
            counters={name: after[name] - before[name] for name in after},
            moved_bytes=moved_bytes,
            record=record,
        )

    async def read_counters(self) -> Mapping[str, int]:
        """The counters of drafts, the generator's `steps`, and both engines' `preemptions`."""
        view, verifier = await self.pair.generator.view(), await self.pair.verifier.view()
        return {
            **await self.pair.generator.process.call("get_counters"),
            **view.token_drafts,
            "steps": view.replays["stock_steps"],
            "preemptions": view.preemptions + verifier.preemptions,
        }

    def read_resident_bytes(self) -> dict[str, int]:
        """Resident memory of both engines' processes."""
        engines = {"generator": self.pair.generator, "verifier": self.pair.verifier}
        return {
            name: int(psutil.Process(engine.health().pid).memory_info().rss)
            for name, engine in engines.items()
        }


async def drive_search(
    engines: Engines,
    spec: Request,
    emit: Callable[[Event], None] = lambda event: None,
    search: Search[Any] | None = None,
) -> tuple[Outcome, Driver, dict[str, Any]]:
    """Run a search, by default the one that the request names. Returns its driver too, and the
    record of its KV memory."""
    prompt = engines.generator.codec.encode_chat(spec.problem.messages)
    with engines.join_kv(emit, len(prompt)) as memory:
        driver = Driver(
            search or build_search(spec), spec, prompt, engines, emit, on_turn=memory.follow
        )
        outcome = await driver.run()
    return outcome, driver, memory.record


async def forget_kv(pair: VllmPair) -> None:
    """Drop the KV of both engines, and the verifier's scores."""
    for engine in (pair.generator, pair.verifier):
        await engine.offload(keep=False)
        await engine.restore()
    pair.verifier.clear_score_cache()


@asynccontextmanager
async def rig(
    kv_bytes: int, name: str = "bundled", *, kind: type[VllmPair] = VllmPair, **settings: object
) -> AsyncIterator[Rig]:
    """Start a pair. `settings` are fields of Config."""
    half = kv_bytes // 2
    config = load_config({"kv_bytes": half, **settings})
    pair, grader = kind(find_pair(name, config), config), MathGrader()
    await pair.start()
    try:
        yield Rig(name, pair, config, grader, 2 * half)
    finally:
        await pair.stop()
        await grader.close()
