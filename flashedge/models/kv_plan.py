"""KV memory of a pair before a run moves any of it."""

from __future__ import annotations

from flashedge.config import Config
from flashedge.models.specs import ENGINE_OVERHEAD_BYTES, Pair


def plan_kv(pair: Pair, config: Config) -> tuple[int, int]:
    """KV bytes of generator and verifier: as configured, else by the pair's memory plan."""
    memory = pair.memory
    return (
        config.generator_kv_bytes or memory.generator_kv_bytes,
        config.verifier_kv_bytes or memory.verifier_kv_bytes,
    )


def estimate_kv_room(free_bytes: int, weights: tuple[int, int]) -> int:
    """KV bytes that both engines can have together where `free_bytes` of memory are free.

    The weights and the overhead of each engine process come first. Negative when those alone do
    not fit.
    """
    return free_bytes - sum(weights) - 2 * ENGINE_OVERHEAD_BYTES
