"""The KV memory of the real engines moves while searches run, and changes no tree."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace

import pytest

from flashedge.config import load_config
from flashedge.engine.memory_plan import find_max_sequences
from flashedge.engine.vllm.pair import VllmPair
from flashedge.events import Event, KvSplitChanged, Offloaded, Restored
from flashedge.models.registry import find_pair
from flashedge.runtime.drive.driver import Outcome
from flashedge.runtime.drive.engines import Engines
from flashedge.runtime.kv.build import build_manager_with
from flashedge.runtime.kv.curves import load_curves
from flashedge.runtime.kv.manager import CountedGenerator, CountedVerifier, KvManager
from flashedge.runtime.request.validation import Request
from flashedge.scheduling.kv.split import KvSplit
from flashedge.scheduling.kv.stages import Workload
from scripts.bench.flashtts.moving_split import make_moving_split
from tests.engine.test_driver_on_vllm import HARD
from tests.support.engine_rig import kept_budgets, settle
from tests.support.runtime_rig import driver_of, prompt_of

SPECS = [
    Request(problem=HARD[i], pair="bundled", strategy=strategy, n=8, seed=21 + i)
    for i, strategy in enumerate(("beam", "dvts", "rebase", "dynamic_branching"))
]


@asynccontextmanager
async def manage(
    pair: VllmPair, kv_bytes: int, forced: Callable[[Workload], KvSplit] | None = None
) -> AsyncIterator[KvManager]:
    """Run a KV manager of `kv_bytes` for both engines. Afterwards the budgets are as before."""
    config = load_config(environ={"FLASHEDGE_HOME": "/nonexistent"})
    manager = await build_manager_with(
        load_curves(find_pair("bundled", config), config),
        pair.generator,
        pair.verifier,
        kv_bytes=kv_bytes,
        max_batch=find_max_sequences(config),
        offload=True,
    )
    if forced is not None:
        manager.choose_split = forced  # type: ignore[method-assign]
    async with kept_budgets(pair.generator, pair.verifier):
        await manager.start()
        try:
            yield manager
        finally:
            await manager.wait_settled()
            await manager.stop()


async def drive(engines: Engines, manager: KvManager, spec: Request) -> tuple[Outcome, list[Event]]:
    events: list[Event] = []
    shared = replace(
        engines,
        generator=CountedGenerator(engines.generator, manager),
        verifier=CountedVerifier(engines.verifier, manager),
    )
    prompt = prompt_of(shared, spec)
    with manager.join(events.append, len(prompt), is_baseline=False) as memory:
        driver = driver_of(shared, spec, events.append, on_turn=memory.follow)
        return await driver.run(), events


@pytest.mark.long
@pytest.mark.parametrize("alternates", [False, True])
async def test_trees_stay_the_same_while_the_memory_moves(
    pair: VllmPair, mapped_pair: VllmPair, engines: Engines, alternates: bool
) -> None:
    """Four runs at a time, with so little memory that requests are preempted, or on engines that
    take turns in granules much larger than a block, as on a card. Each takes 40 s."""
    if alternates:
        pair = mapped_pair
        engines = replace(engines, generator=pair.generator, verifier=pair.verifier)
    stock = engines.switch(speculation=False, score_once=False)
    engines = engines.switch(early_scores=True)
    plain = [await driver_of(stock, spec, lambda _: None).run() for spec in SPECS]
    views = await pair.generator.view(), await pair.verifier.view()
    async with manage(pair, 1 << 40, make_moving_split(views, alternates=alternates)) as manager:
        runs = await asyncio.gather(*(drive(engines, manager, spec) for spec in SPECS))
        assert [outcome for outcome, _ in runs] == plain
        events = [event for _, found in runs for event in found]
        assert sum(isinstance(event, KvSplitChanged) for event in events) > 10
        for kind in (Offloaded, Restored):
            assert (sum(isinstance(event, kind) for event in events) > 4) == alternates
    after = await pair.generator.view()
    assert after.preemptions > views[0].preemptions
    for engine in (pair.generator, pair.verifier):
        await settle(engine)


async def test_the_chosen_split_changes_no_tree_either(pair: VllmPair, engines: Engines) -> None:
    view = await pair.generator.view()
    async with manage(pair, 100 * view.block_bytes) as manager:
        for spec in SPECS[:2]:
            outcome, events = await drive(engines, manager, spec)
            assert outcome == await driver_of(engines, spec, lambda _: None).run()
            assert any(isinstance(event, KvSplitChanged) for event in events)
