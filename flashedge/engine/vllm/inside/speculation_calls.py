"""What the daemon calls on the scheduler's drafts, between two engine steps (see `control`).

Methods added to vLLM's EngineCore, reached by `call_utility_async("flashedge_…")`.

Checked with vLLM 0.32.0.
"""

from __future__ import annotations

from vllm.v1.engine.core import EngineCore


def _list_complete_drafts(self: EngineCore, run: str) -> list[tuple[int, list[int]]]:
    return self.scheduler.list_complete_drafts(run)


def _drop_unused_drafts(
    self: EngineCore, run: str, level: int, seeds: list[int], flat_batch: int
) -> int:
    return self.scheduler.drop_unused_drafts(run, level, seeds, flat_batch)


def _end_run(self: EngineCore, run: str) -> int:
    return self.scheduler.end_run(run)


def _speculation(self: EngineCore) -> dict[str, int]:
    return self.scheduler.counters


EngineCore.flashedge_list_complete_drafts = _list_complete_drafts  # type: ignore[attr-defined]
EngineCore.flashedge_drop_unused_drafts = _drop_unused_drafts  # type: ignore[attr-defined]
EngineCore.flashedge_end_run = _end_run  # type: ignore[attr-defined]
EngineCore.flashedge_speculation = _speculation  # type: ignore[attr-defined]
