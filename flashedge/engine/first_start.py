"""The first start of a pair on a device: measures what each engine takes beside its KV.

Each engine's process counts what it holds itself, so other programs on the card change nothing. The
measurement runs the largest step that the batch limit allows, before the first request. On a card
both engines start at once, with the memory that was estimated. If they take more than that and the
reserve together, they start again one after the other, and the verifier gets less KV.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import TYPE_CHECKING

from flashedge.engine.platform import runs_on_cpu
from flashedge.errors import EngineError
from flashedge.models.memory.engine_memory import EngineMemory
from flashedge.sizes import format_size

if TYPE_CHECKING:
    from flashedge.engine.vllm.engine import VllmEngine

log = logging.getLogger(__name__)


async def measure_engine(engine: VllmEngine) -> EngineMemory | None:
    """Measure an engine on a card; of several cards the first.

    None if it could not be measured, which does not stop it from serving.
    """
    try:
        return _log(engine, build_memory(await engine.measure_memory()))
    except EngineError as error:
        log.warning("the %s could not be measured: %s", engine.options.name, error.line)
        return None


async def measure_started(engine: VllmEngine, weights_bytes: int) -> EngineMemory:
    """Measure an engine on a CPU by its resident memory. Raises EngineError.

    `weights_bytes` are those of its model's files.
    """
    assert runs_on_cpu(), "a card's engine knows its weights"
    return _log(engine, build_memory({**await engine.measure_memory(), "weights": weights_bytes}))


def build_memory(parts: Mapping[str, int]) -> EngineMemory:
    """What an engine holds beside its KV, and for what.

    `parts` are those of `inside.memory.step_memory`. What they don't explain is the context: the
    memory of CUDA, of libraries and of CUDA graphs, and what torch keeps for later.
    """
    own = {name: parts[name] for name in ("weights", "forward", "logits", "logprobs", "noise")}
    found = EngineMemory(**own, context=0, graphs=0, is_estimate=False)
    rest = max(0, parts["resident"] - found.total)
    return EngineMemory(**own, context=rest, graphs=0, is_estimate=False)


def _log(engine: VllmEngine, found: EngineMemory) -> EngineMemory:
    log.info(
        "the %s takes %s beside its KV: weights %s, a step %s, the rest %s",
        engine.options.name,
        *map(format_size, (found.total, found.weights, found.step, found.context)),
    )
    return found
