"""What the daemon calls on the scheduler's deterministic requests between two engine steps.

`patches` adds these functions to vLLM's EngineCore as methods.

Checked with vLLM 0.32.0.
"""

from __future__ import annotations

from typing import Any

from vllm.v1.engine.core import EngineCore

from flashedge.scheduling.determinism.replay_shape import ReplayShape


def set_replay_shape(self: EngineCore, shape: dict[str, Any]) -> int:
    """Returns the rows of a pass. Raises ValueError as `Windows.set_shape`."""
    chosen = ReplayShape.from_json(shape)
    self.scheduler.passes.windows.set_shape(chosen)
    return chosen.rows


def count_replays(self: EngineCore) -> dict[str, int]:
    """See `passes.COUNTERS`."""
    return self.scheduler.passes.counters
