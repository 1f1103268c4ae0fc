"""Up to which batch the generator's steps are flat, as its speculation is told: if measured.

Ref: arXiv 2509.00195 §4.1.2, whose batch stays as large as the level was; ADR 8.
"""

from __future__ import annotations

import asyncio
import logging

from flashedge.config import Config
from flashedge.engine.base import Generator
from flashedge.errors import FlashEdgeError
from flashedge.registry import Pair
from flashedge.runtime.kv_curves import curves_for
from flashedge.scheduling.cost_curves import MeasuredCurve
from flashedge.scheduling.speculation import flat_batch

log = logging.getLogger(__name__)

CONTEXT_TOKENS = 256  # of a path in the middle of its way


async def tell_flat_batch(pair: Pair, generator: Generator, config: Config) -> None:
    """Where there is no profile that fits, nothing is told: the places left by beams are filled."""
    speculator = generator.speculator
    if speculator is None or not config.scheduling_speculation:
        return
    try:
        curve = (await asyncio.to_thread(curves_for, pair, config)).generator
    except FlashEdgeError as error:
        log.warning("steps are not known to be flat: %s", error.line)
        return
    if isinstance(curve, MeasuredCurve):
        step_s = curve.decode_at(CONTEXT_TOKENS)
        speculator.flat_batch = flat_batch(step_s, config.max_num_seqs)
        log.info("steps are flat up to %d sequences", speculator.flat_batch)
