"""What the daemon calls in an engine process between two of its steps.

Methods added to vLLM's EngineCore, reached by `AsyncLLM.engine_core.call_utility_async(name)`.
Those of other parts (speculation) are added where they are written.

Checked with vLLM 0.32.0.
"""

from __future__ import annotations

from typing import Any

from vllm.v1.core.sched.interface import PauseState
from vllm.v1.engine.core import EngineCore


def _view(self: EngineCore) -> dict[str, int]:
    _give_back(self, self.scheduler.take_ballooned())
    return self.scheduler.view()


def _set_quota(self: EngineCore, blocks: int, sequences: int | None) -> int:
    granted = self.scheduler.set_quota(blocks)
    self.scheduler.set_sequences(sequences)
    _give_back(self, self.scheduler.take_ballooned())
    return granted


def _begin(self: EngineCore) -> dict[str, Any]:
    """Once, before the first request: give back what the KV tensor took and nobody needs yet.
    Returns the view and what `kv_memory` says of itself."""
    _give_back(self, self.scheduler.blank_blocks())
    return self.scheduler.view() | self.model_executor.collective_rpc("kv_memory")[0]


def _offload(self: EngineCore, keep: bool, folder: str, to_file: bool) -> int:
    """Stop stepping, save what is of use (not keep: forget it), give all KV memory back. Requests
    that come wait. Returns the bytes saved."""
    scheduler = self.scheduler
    scheduler.set_pause_state(PauseState.PAUSED_ALL)
    scheduler.kv_leaves()
    if not keep:
        scheduler.drop_kv()
    call = self.model_executor.collective_rpc
    saved = call("save_kv_blocks", args=(scheduler.kept_blocks(), folder, to_file))[0]
    _give_back(self, scheduler.all_blocks())
    return saved


def _restore(self: EngineCore) -> int:
    """The inverse: what is still of use comes back, and steps go on. Returns the bytes loaded."""
    kept = self.scheduler.kept_blocks()
    loaded = self.model_executor.collective_rpc("load_kv_blocks", args=(kept,))[0]
    self.scheduler.set_pause_state(PauseState.UNPAUSED)
    return loaded


def _give_back(core: EngineCore, block_ids: list[int]) -> int:
    if not block_ids:
        return 0
    return core.model_executor.collective_rpc("release_kv_blocks", args=(block_ids,))[0]


EngineCore.flashedge_begin = _begin  # type: ignore[attr-defined]
EngineCore.flashedge_offload = _offload  # type: ignore[attr-defined]
EngineCore.flashedge_restore = _restore  # type: ignore[attr-defined]
EngineCore.flashedge_view = _view  # type: ignore[attr-defined]
EngineCore.flashedge_set_quota = _set_quota  # type: ignore[attr-defined]
