"""The KV memory that each engine starts with, and the manager that moves it once they are up."""

import asyncio
import logging
from dataclasses import replace

import psutil

from flashedge.config import Config
from flashedge.engine.base import Generator, Verifier
from flashedge.engine.layout import find_layout
from flashedge.engine.memory_plan import find_max_sequences, resolve_memory
from flashedge.engine.platform import BLOCK_TOKENS, detect_device_kind
from flashedge.errors import FlashEdgeError
from flashedge.models.checkpoint_shape import load_shape
from flashedge.models.memory.engine_memory import count_path_bytes
from flashedge.models.memory.fit import count_least_kv
from flashedge.models.specs import ModelSpec, Pair
from flashedge.runtime.kv.curves import Curves, load_curves
from flashedge.runtime.kv.manager import MAPPED, PARTS, KvManager
from flashedge.scheduling.costs import CostCurve
from flashedge.scheduling.kv.split import HostLink, KvMemory
from flashedge.scheduling.kv.stages import EngineCost, Workload

log = logging.getLogger(__name__)

MOVABLE = {"os", MAPPED}
"""Values of `Health.kv_memory` with which one engine can use what the other gives up."""

WIDE = Workload(paths=512, context_tokens=256, live_tokens=256 + 511 * 20, step_tokens=52)
"""A level of the widest search, with steps as long as those of MATH. Each path has 20 tokens of
its context for itself, and shares the others. In simulation, searches with a fixed division for
this level took at most 0.6 % longer than with one that follows each level."""


def choose_start_split(pair: Pair, config: Config) -> tuple[int, int]:
    """Divide the KV memory. Returns the bytes of generator and verifier at their start.
    The memory plan's division stands if the split is switched off, if the engines run on different
    cards, or if their costs can't be estimated. Ref: arXiv 2509.00195 §4.3."""
    config = resolve_memory(pair, config)
    plan = config.kv_bytes.generator or 0, config.kv_bytes.verifier or 0
    is_divided = pair.has_verifier and config.features.kv_split
    if not is_divided or not find_layout(config).is_shared:
        return plan
    try:
        curves = load_curves(pair, config)
        memory = KvMemory(
            generator=build_start_cost(curves.generator, pair.generator, config),
            verifier=build_start_cost(curves.verifier, pair.verifier, config),
            kv_bytes=sum(plan),
        )
        split = memory.choose_split(WIDE)
    except FlashEdgeError as error:
        log.warning("the KV memory is divided as planned: %s", error.line)
        return plan
    return split.generator_bytes, split.verifier_bytes


def build_start_cost(curve: CostCurve, spec: ModelSpec, config: Config) -> EngineCost:
    """Estimate an engine's costs before it has started. Bytes are those of each of its cards. A
    token has its share of a path of `WIDE`, windows and states included."""
    shape, cards = load_shape(spec, config), find_layout(config).generator.count
    tokens = max(BLOCK_TOKENS[detect_device_kind()], shape.state_tokens)
    path = -(-(WIDE.context_tokens + WIDE.step_tokens) // tokens) * tokens
    block_bytes = tokens * (count_path_bytes(shape, cards, path) // path)
    cost = build_engine_cost(
        curve, block_bytes, tokens, spec.max_model_len, find_max_sequences(config)
    )
    return replace(cost, least_bytes=count_least_kv(shape, spec.max_model_len, cards))


async def build_manager(
    pair: Pair, generator: Generator, verifier: Verifier, curves: Curves, config: Config
) -> KvManager | None:
    """Build and start the manager. Returns None if the split is switched off, the memory can't move
    on this device, or an engine does not answer. Each engine then keeps the memory it has."""
    mechanisms = {generator.health().kv_memory, verifier.health().kv_memory}
    if not config.features.kv_split or not mechanisms <= MOVABLE:
        return None
    try:
        config = resolve_memory(pair, config)
        manager = await build_manager_with(
            curves,
            generator,
            verifier,
            kv_bytes=(config.kv_bytes.generator or 0) + (config.kv_bytes.verifier or 0),
            max_batch=find_max_sequences(config),
            # On a CPU saved KV would take the same memory again.
            offload=config.features.offload and mechanisms == {MAPPED},
        )
    except FlashEdgeError as error:
        log.warning("the KV memory stays as planned: %s", error.line)
        return None
    await manager.start()
    return manager


async def build_manager_with(
    curves: Curves,
    generator: Generator,
    verifier: Verifier,
    *,
    kv_bytes: int,
    max_batch: int,
    offload: bool,
) -> KvManager:
    """Build the manager for engines that serve. kv_bytes: for both, lowered to what their pools can
    hold. max_batch: most sequences in a step."""
    views = await generator.view(), await verifier.view()
    engines = ((curves.generator, views[0], generator), (curves.verifier, views[1], verifier))
    costs = [
        build_engine_cost(
            curve, view.block_bytes, view.block_tokens, engine.max_model_len, max_batch
        )
        for curve, view, engine in engines
    ]
    kv_bytes = min(kv_bytes, sum(view.blocks_total * view.block_bytes for view in views))
    link = None
    if offload:
        link = HostLink(
            bytes_per_s=curves.link_bytes_per_s,
            # `inside.kv.save_area` leaves as much free as it takes, so half of it counts.
            capacity_bytes=psutil.virtual_memory().available // 2,
            switch_s=await _measure_switch(generator, verifier),
        )
    both = costs[0], costs[1]
    return KvManager(generator, verifier, both, curves, kv_bytes=kv_bytes, link=link)


def build_engine_cost(
    curve: CostCurve, block_bytes: int, block_tokens: int, max_model_len: int, max_batch: int
) -> EngineCost:
    """Build an engine's costs. It needs at least the blocks of a request of full length, and one
    that vLLM never uses."""
    token_bytes = block_bytes // block_tokens
    return EngineCost(
        curve=curve,
        kv_bytes_per_token=token_bytes,
        block_tokens=block_tokens,
        max_batch=max_batch,
        least_bytes=(-(-max_model_len // block_tokens) + 1) * block_tokens * token_bytes,
    )


async def _measure_switch(generator: Generator, verifier: Verifier) -> float:
    """Measure the mean seconds of an offload and a restore with next to nothing to move. Of memory
    that is mapped, one part stands for all: mapping all of a large card takes seconds."""
    share = 1 / PARTS if generator.health().kv_memory == MAPPED else 1.0
    clock = asyncio.get_running_loop().time
    began = clock()
    for engine in (generator, verifier):
        await engine.offload(share=share)
        await engine.restore()
    return (clock() - began) / 2 / share
