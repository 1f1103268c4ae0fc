"""What one more rollout costs on these engines, by the curves of their profile."""

from __future__ import annotations

from flashedge.engine.base import Generator, Verifier
from flashedge.engine.platform import has_own_processor, have_own_processors
from flashedge.runtime.kv.curves import Curves
from flashedge.scheduling.costs import MeasuredCurve
from flashedge.scheduling.rollouts.rollout_cost import RolloutCost

OWN_CARDS = "own"
"""`Health.kv_memory` of engines that run on cards of their own."""


def build_rollout_cost(
    curves: Curves, generator: Generator, verifier: Verifier, threads: int
) -> RolloutCost | None:
    """None unless both curves were measured: an assumed speed must not make others wait.

    threads: CPU threads of each engine.
    """
    both = curves.generator, curves.verifier
    if not all(isinstance(curve, MeasuredCurve) for curve in both):
        return None
    has_own = OWN_CARDS in {engine.health().kv_memory for engine in (generator, verifier)}
    return RolloutCost(
        generator=curves.generator,
        verifier=curves.verifier,
        shares_device=not (have_own_processors(threads) or has_own),
        shares_daemon=not has_own_processor(threads),
    )
