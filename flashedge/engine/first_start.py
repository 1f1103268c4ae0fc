"""The first start of a pair on a device: measures what each engine takes beside its KV.

The engines start one after the other, so that what the card has less afterwards is one engine's.
The measurement runs the largest step that the batch limit allows, before the first request.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from typing import TYPE_CHECKING

from flashedge.config import Config
from flashedge.engine.memory_plan import read_engine_card
from flashedge.engine.platform import runs_on_cpu
from flashedge.errors import EngineError
from flashedge.models.memory.engine_memory import EngineMemory
from flashedge.sizes import format_size

if TYPE_CHECKING:
    from flashedge.engine.vllm.engine import VllmEngine

log = logging.getLogger(__name__)


async def start_measured(engine: VllmEngine, config: Config) -> EngineMemory | None:
    """Start an engine on a card and measure it. Raises EngineError if it does not start.

    Of several cards it measures the one with the least room. None if the engine could not be
    measured, which does not stop it from serving.
    """
    name = engine.options.name
    before = await asyncio.to_thread(read_engine_card, config, name)
    await engine.start()
    try:
        parts = await engine.measure_memory()
    except EngineError as error:
        log.warning("the %s could not be measured: %s", name, error.line)
        return None
    after = await asyncio.to_thread(read_engine_card, config, name)
    kv_bytes = engine.options.kv_start_bytes or engine.options.kv_bytes
    return _log(engine, build_memory(parts, after.held_bytes - before.held_bytes - kv_bytes))


async def measure_started(engine: VllmEngine, weights_bytes: int) -> EngineMemory:
    """Measure an engine on a CPU by its resident memory. Raises EngineError.

    `weights_bytes` are those of its model's files.
    """
    assert runs_on_cpu(), "on a card the memory before the start has to be known"
    parts = {**await engine.measure_memory(), "weights": weights_bytes}
    return _log(engine, build_memory(parts, parts["resident"]))


def build_memory(parts: Mapping[str, int], taken: int) -> EngineMemory:
    """What an engine that took `taken` bytes beside its KV took them for.

    `parts` are those of `inside.memory.step_memory`. What they don't explain is the context: the
    memory of CUDA, of libraries and of CUDA graphs, and what torch keeps for later.
    """
    own = {name: parts[name] for name in ("weights", "forward", "logits", "logprobs", "noise")}
    found = EngineMemory(**own, context=0, graphs=0, is_estimate=False)
    rest = max(0, taken - found.total)
    return EngineMemory(**own, context=rest, graphs=0, is_estimate=False)


def _log(engine: VllmEngine, found: EngineMemory) -> EngineMemory:
    log.info(
        "the %s takes %s beside its KV: weights %s, a step %s, the rest %s",
        engine.options.name,
        *map(format_size, (found.total, found.weights, found.step, found.context)),
    )
    return found
