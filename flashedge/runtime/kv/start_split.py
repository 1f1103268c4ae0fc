"""What KV each engine is started with: for good, where its memory can't move later."""

from __future__ import annotations

import logging

from flashedge.config import Config
from flashedge.engine.vllm.compat import block_tokens
from flashedge.errors import FlashEdgeError
from flashedge.models.kv_plan import kv_plan
from flashedge.models.registry import ModelSpec, Pair
from flashedge.runtime.kv.build import cost_of
from flashedge.runtime.kv.curves import curves_for, shape_of
from flashedge.scheduling.costs.curves import CostCurve
from flashedge.scheduling.kv.split import best_split
from flashedge.scheduling.kv.stages import EngineCost, Workload

log = logging.getLogger(__name__)

# A level of the widest search, in steps of MATH: narrower ones mostly fit, however it is divided.
# Simulated, a division for this level was within 0.6 % of one that moves with every level.
WIDE = Workload(paths=512, context_tokens=256, live_tokens=256 + 511 * 20, step_tokens=52)


def start_split(pair: Pair, config: Config) -> tuple[int, int]:
    """KV bytes of generator and verifier: what both have by the memory plan or as configured,
    divided anew by what is known of this device; not where the split is off or nothing is known.

    Ref: arXiv 2509.00195 §4.3.
    """
    plan = kv_plan(pair, config)
    if not config.scheduling_kv_split:
        return plan
    try:
        curves = curves_for(pair, config)
        split = best_split(
            WIDE,
            generator=_cost(curves.generator, pair.generator, config),
            verifier=_cost(curves.verifier, pair.verifier, config),
            kv_bytes=sum(plan),
        )
    except FlashEdgeError as error:
        log.warning("KV memory as planned: %s", error.line)
        return plan
    return split.generator_bytes, split.verifier_bytes


def _cost(curve: CostCurve, spec: ModelSpec, config: Config) -> EngineCost:
    return cost_of(
        curve,
        token_bytes=shape_of(spec, config).kv_bytes_per_token,
        block_tokens=block_tokens(),
        max_model_len=spec.max_model_len,
        max_batch=config.max_num_seqs,
    )
