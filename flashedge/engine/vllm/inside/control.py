"""What the daemon calls in an engine process between two of its steps.

Methods added to vLLM's EngineCore, reached by `AsyncLLM.engine_core.call_utility_async(name)`.
Those of other parts (speculation) are added where they are written.

Checked with vLLM 0.32.0.
"""

from __future__ import annotations

import logging
from typing import Any

from vllm.v1.core.sched.interface import PauseState
from vllm.v1.engine.core import EngineCore

log = logging.getLogger(__name__)


def _view(self: EngineCore) -> dict[str, int]:
    _give_back(self, self.scheduler.take_ballooned())
    return self.scheduler.view()


def _set_quota(self: EngineCore, blocks: int) -> int:
    """It stays as it was where there is no memory for a larger one. Returns it."""
    scheduler = self.scheduler
    away = scheduler.pause_state is PauseState.PAUSED_ALL  # `_restore` claims what it needs
    missing = None if away else _claim(self, scheduler.leaving(blocks))
    if missing is not None:
        log.warning("no memory for %d KV blocks (%s): still %d", blocks, missing, scheduler.quota)
        blocks = scheduler.quota
    granted = scheduler.set_quota(blocks)
    _give_back(self, scheduler.take_ballooned())
    return granted


def _begin(self: EngineCore) -> dict[str, Any]:
    """Once, before the first request. Returns the view and what `kv_memory` says of itself."""
    _give_back(self, self.scheduler.take_ballooned())
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
    """The inverse: what is still of use comes back, and steps go on, with less where there is no
    memory for all. Returns the bytes loaded. Raises MemoryError where there is next to none."""
    scheduler = self.scheduler
    while (missing := _claim(self, scheduler.pool_blocks())) is not None:
        less = scheduler.quota // 2
        if scheduler.set_quota(less) > less:
            raise MemoryError(f"no memory for the KV of one request: {missing}")
        log.warning("no memory for all KV (%s): now %d blocks", missing, less)
    kept = scheduler.kept_blocks()
    loaded = self.model_executor.collective_rpc("load_kv_blocks", args=(kept,))[0]
    scheduler.set_pause_state(PauseState.UNPAUSED)
    return loaded


def _claim(core: EngineCore, block_ids: list[int]) -> str | None:
    """Memory for blocks that are about to come into the pool. None, or why there is none."""
    if not block_ids:
        return None
    return core.model_executor.collective_rpc("claim_kv_blocks", args=(block_ids,))[0]


def _give_back(core: EngineCore, block_ids: list[int]) -> int:
    if not block_ids:
        return 0
    return core.model_executor.collective_rpc("release_kv_blocks", args=(block_ids,))[0]


EngineCore.flashedge_begin = _begin  # type: ignore[attr-defined]
EngineCore.flashedge_offload = _offload  # type: ignore[attr-defined]
EngineCore.flashedge_restore = _restore  # type: ignore[attr-defined]
EngineCore.flashedge_view = _view  # type: ignore[attr-defined]
EngineCore.flashedge_set_quota = _set_quota  # type: ignore[attr-defined]
