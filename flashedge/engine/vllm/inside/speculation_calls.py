"""What the daemon calls on the scheduler's drafts between two engine steps.

`patches` adds these functions to vLLM's EngineCore as methods.

Checked with vLLM 0.32.0.
"""

from __future__ import annotations

from vllm.v1.engine.core import EngineCore


def list_complete_drafts(self: EngineCore, run: str) -> list[tuple[int, list[int]]]:
    return self.scheduler.drafts.list_complete(run)


def drop_unused_drafts(
    self: EngineCore, run: str, levels: list[int], seeds: list[int], flat_batch: int
) -> int:
    return self.scheduler.drafts.drop_unused(run, levels, seeds, flat_batch)


def end_run(self: EngineCore, run: str) -> int:
    return self.scheduler.drafts.end_run(run)


def get_counters(self: EngineCore) -> dict[str, int]:
    """See `paused_requests.COUNTERS`; and how often waiting requests changed their order."""
    scheduler = self.scheduler
    return {**scheduler.drafts.counters, "reordered": scheduler.programs.reordered}
