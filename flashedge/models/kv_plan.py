"""What KV memory a pair has before anything of it moves."""

from __future__ import annotations

from flashedge.config import Config
from flashedge.models.registry import Pair


def kv_plan(pair: Pair, config: Config) -> tuple[int, int]:
    """KV bytes of generator and verifier by the pair's memory plan, or as configured."""
    memory = pair.memory
    return (
        config.generator_kv_bytes or memory.generator_kv_bytes,
        config.verifier_kv_bytes or memory.verifier_kv_bytes,
    )
