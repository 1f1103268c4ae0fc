"""Up to which batch the generator's steps are flat, as its speculation is told: if measured.

Ref: arXiv 2509.00195 §4.1.2, whose batch stays as large as the level was; ADR 8.
"""

from __future__ import annotations

import logging

from flashedge.config import Config
from flashedge.engine.base import Speculator
from flashedge.scheduling.costs.curves import CostCurve, MeasuredCurve
from flashedge.scheduling.speculation.slots import flat_batch

log = logging.getLogger(__name__)

CONTEXT_TOKENS = 256  # of a path in the middle of its way


def tell_flat_batch(speculator: Speculator | None, curve: CostCurve, config: Config) -> None:
    """Where no profile fits, nothing is told: only the places left by beams are filled."""
    if speculator is None or not config.scheduling_speculation:
        return
    if flat := measured_flat_batch(curve, config.max_num_seqs):
        speculator.flat_batch = flat
        log.info("steps are flat up to %d sequences", flat)


def measured_flat_batch(curve: CostCurve, most: int) -> int:
    """0 where the curve was not measured."""
    if not isinstance(curve, MeasuredCurve):
        return 0
    return flat_batch(curve.decode_at(CONTEXT_TOKENS), most)
