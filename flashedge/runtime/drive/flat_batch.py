"""How far speculation may fill the generator's batch: as far as measured steps stay flat.

Ref: arXiv 2509.00195 §4.1.2, whose batch stays as large as the level was; ADR 8.
"""

from __future__ import annotations

import logging

from flashedge.config import Config
from flashedge.engine.base import Speculator
from flashedge.engine.memory_plan import count_sequences
from flashedge.scheduling.costs import CostCurve, MeasuredCurve
from flashedge.scheduling.speculation.draft_choice import find_flat_batch

log = logging.getLogger(__name__)

CONTEXT_TOKENS = 256  # of a typical path halfway through


def set_flat_batch(speculator: Speculator | None, curve: CostCurve, config: Config) -> None:
    """Set the speculator's flat batch if the curve was measured. Otherwise drafts only fill the
    slots that finished beams leave."""
    if speculator is None or not config.features.speculation:
        return
    if flat := find_measured_flat_batch(curve, count_sequences(config)):
        speculator.flat_batch = flat
        log.info("decode steps stay flat up to %d sequences", flat)


def find_measured_flat_batch(curve: CostCurve, max_batch: int) -> int:
    """The flat batch by a measured curve, 0 for any other curve."""
    if not isinstance(curve, MeasuredCurve):
        return 0
    return find_flat_batch(curve.decode_at(CONTEXT_TOKENS), max_batch)
