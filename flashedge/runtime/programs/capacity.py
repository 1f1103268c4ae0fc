"""What the engines of a pair have room for: from their KV, their batch and their measured speed."""

from __future__ import annotations

from flashedge.engine.base import EngineView, Generator, Verifier
from flashedge.runtime.drive.engines import CONTEXT_TOKENS
from flashedge.scheduling.costs import CostCurve
from flashedge.scheduling.programs.admission import Capacity, find_useful_batch


async def measure_capacity(
    generator: Generator,
    verifier: Verifier,
    curve: CostCurve,
    *,
    max_running: int,
    max_sequences: int,
    is_shared: bool,
    is_assumed: bool = False,
) -> Capacity:
    """Measure the room of two started engines. Raises EngineDead.

    curve: of the generator. max_sequences: most in one step of the generator. is_shared: see
    `count_kv_tokens`. is_assumed: whether the curve is only assumed, so that nobody may be made to
    wait by it.
    """
    views, step_s = (await generator.view(), await verifier.view()), curve.decode_at(CONTEXT_TOKENS)
    return Capacity(
        kv_tokens=count_kv_tokens(*views, is_shared=is_shared),
        max_running=max_running,
        useful_sequences=find_useful_batch(step_s, max_sequences),
        step_s=step_s,
        is_assumed=is_assumed,
    )


def count_kv_tokens(generator: EngineView, verifier: EngineView, *, is_shared: bool) -> int:
    """Tokens whose KV fits into both engines.

    is_shared: whether memory moves between them, so that all of it counts for both together.
    """
    views = generator, verifier
    each = [view.quota_blocks * view.block_tokens for view in views]
    if not is_shared:
        return min(each)
    room = sum(view.quota_blocks * view.block_bytes for view in views)
    return int(room / sum(view.block_bytes / view.block_tokens for view in views))
