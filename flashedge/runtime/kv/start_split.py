"""Choose the KV memory that each engine starts with.

Where memory can't move later, each engine keeps this share for good.
"""

from __future__ import annotations

import logging

from flashedge.config import Config
from flashedge.engine.layout import find_layout
from flashedge.engine.memory_plan import count_sequences, resolve_memory
from flashedge.engine.platform import choose_block_tokens
from flashedge.errors import FlashEdgeError
from flashedge.models.checkpoint_shape import load_shape
from flashedge.models.memory.tensor_parallel import count_kv_bytes
from flashedge.models.specs import ModelSpec, Pair
from flashedge.runtime.kv.build import build_engine_cost
from flashedge.runtime.kv.curves import load_curves
from flashedge.scheduling.costs.curves import CostCurve
from flashedge.scheduling.kv.split import choose_split
from flashedge.scheduling.kv.stages import EngineCost, Workload

log = logging.getLogger(__name__)

WIDE = Workload(paths=512, context_tokens=256, live_tokens=256 + 511 * 20, step_tokens=52)
"""A level of the widest search, with steps as long as those of MATH.

Narrower levels mostly fit, however the memory is divided. Simulated, a division for this level was
within 0.6 % of one that moves with every level.
"""


def choose_start_split(pair: Pair, config: Config) -> tuple[int, int]:
    """Choose the KV bytes of generator and verifier.

    Their sum is that of the memory plan, or as configured. It is divided by what is known of this
    device. If the split is switched off, nothing is known, or the engines run on different cards,
    the plan's own division stands.

    Ref: arXiv 2509.00195 §4.3.
    """
    config = resolve_memory(pair, config)
    plan = config.generator_kv_bytes or 0, config.verifier_kv_bytes or 0
    layout = find_layout(config)
    if not config.scheduling_kv_split or not layout.is_shared:
        return plan
    count = layout.generator.count
    try:
        curves = load_curves(pair, config)
        split = choose_split(
            WIDE,
            generator=_build_cost(curves.generator, pair.generator, config, count),
            verifier=_build_cost(curves.verifier, pair.verifier, config, count),
            kv_bytes=sum(plan),
        )
    except FlashEdgeError as error:
        log.warning("the KV memory is divided as planned: %s", error.line)
        return plan
    return split.generator_bytes, split.verifier_bytes


def _build_cost(curve: CostCurve, spec: ModelSpec, config: Config, cards: int = 1) -> EngineCost:
    """`cards` share the engine; its memory is counted on one of them."""
    return build_engine_cost(
        curve,
        token_bytes=count_kv_bytes(load_shape(spec, config), cards),
        block_tokens=choose_block_tokens(),
        max_model_len=spec.max_model_len,
        max_batch=count_sequences(config),
    )
