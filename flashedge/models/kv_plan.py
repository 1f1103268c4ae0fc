"""KV memory of a pair before a run moves any of it."""

from __future__ import annotations

from flashedge.config import Config
from flashedge.models.shape import ModelShape
from flashedge.models.specs import ENGINE_OVERHEAD_BYTES, Pair


def plan_kv(pair: Pair, config: Config) -> tuple[int, int]:
    """KV bytes of generator and verifier: as configured, else by the pair's memory plan."""
    memory = pair.memory
    return (
        config.generator_kv_bytes or memory.generator_kv_bytes,
        config.verifier_kv_bytes or memory.verifier_kv_bytes,
    )


def estimate_kv_room(memory_bytes: int, shapes: tuple[ModelShape, ModelShape], share: float) -> int:
    """KV bytes that both engines can have together on `share` of a device's memory.

    Counts like vLLM: the weights and the overhead of each engine process come first. Negative when
    those alone do not fit.
    """
    weights = sum(shape.weights_bytes for shape in shapes)
    return round(memory_bytes * share) - weights - 2 * ENGINE_OVERHEAD_BYTES
