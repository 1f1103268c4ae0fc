"""Quota, offload and restore of one engine's KV memory, between two of its steps.

These functions run in the engine process when the daemon calls them (`inside.patches`). They keep
two parts in step: the scheduler, which knows what each block is used for (`quota`), and the worker,
which maps and unmaps the blocks' memory (`worker`).

Restoring never leaves an engine paused. If there is no memory for the whole quota, the quota is
lowered. If there is none for one request, or the device fails otherwise, the process ends and the
daemon restarts it.
"""

from __future__ import annotations

import logging
from collections.abc import Collection
from typing import Any

from flashedge.engine.vllm.inside import start_stages

log = logging.getLogger(__name__)


def begin(core: Any) -> dict[str, Any]:
    """Prepare for the first request. Return the view and the worker's `describe_kv_memory`."""
    start_stages.end()
    return view(core) | _call_worker(core, "describe_kv_memory")


def measure_memory(core: Any, kv_bytes: int) -> dict[str, int]:
    """Measure what the largest step takes. Call it before the first request.

    kv_bytes: of the KV that has memory now.
    """
    found: dict[str, int] = _call_worker(core, "measure_step_memory", kv_bytes)
    return found


def view(core: Any) -> dict[str, Any]:
    _release_reserved(core)
    found: dict[str, Any] = core.scheduler.view()
    return found


def set_quota(core: Any, blocks: int) -> int:
    """Set the quota and return it. It stays as it was if there is no memory for a larger one."""
    kv = core.scheduler.kv
    if not kv.is_paused:  # else `restore` claims the memory
        shortage = _claim(core, kv.list_returning(blocks))
        if shortage is not None:
            quota = kv.quota
            log.warning("no memory for %d KV blocks (%s): keeping %d", blocks, shortage, quota)
            blocks = quota
    granted = int(kv.set_quota(blocks))
    _release_reserved(core)
    return granted


def offload(core: Any, keep: bool, folder: str, to_file: bool) -> int:
    """Pause the engine, save its KV and release all KV memory. New requests wait.

    With `keep` false the KV is dropped, and computed again later; so it is if saving fails. Returns
    the bytes saved.
    """
    kv = core.scheduler.kv
    kv.pause()
    core.scheduler.draft_jobs.count_offloaded()
    if not keep:
        kv.drop_kv()
    try:
        saved = _call_worker(core, "save_kv_blocks", kv.list_used_blocks(), folder, to_file)
    except Exception:  # e.g. a full disk
        log.exception("the KV could not be saved: it will be computed again")
        kv.drop_kv()
        saved = 0
    _call_worker(core, "release_kv_blocks", kv.list_all_blocks())
    return int(saved)


def restore(core: Any) -> int:
    """Undo `offload`: claim memory, load the KV that is still of use, and resume.

    Resumes with a smaller quota if there is no memory for all of it. If loading fails, the KV is
    dropped. Returns the bytes loaded.

    Raises SystemExit, which ends the process, if there is no memory for one request.
    """
    kv = core.scheduler.kv
    try:
        _claim_quota(core)
    except Exception as error:  # e.g. the driver of the device
        raise _end_process(f"no memory could be mapped: {error}") from error
    try:
        loaded = _call_worker(core, "load_kv_blocks", kv.list_used_blocks())
    except Exception:  # e.g. the file of saved KV is gone
        log.exception("the KV could not be loaded: it is computed again")
        kv.drop_kv()
        loaded = 0
    kv.resume()
    return int(loaded)


def _claim_quota(core: Any) -> None:
    """Map the memory of the quota, or of a smaller one. Raises SystemExit like `restore`."""
    kv = core.scheduler.kv
    while (shortage := _claim(core, kv.list_pool_blocks())) is not None:
        quota = kv.quota
        lower = kv.set_quota(quota // 2)
        if lower >= quota:
            raise _end_process(f"no memory for the KV of one request ({quota} blocks): {shortage}")
        log.warning("no memory for %d KV blocks (%s): trying %d", quota, shortage, lower)


def _end_process(why: str) -> SystemExit:
    """The exception that ends this engine process. vLLM lets it pass out of a call."""
    log.critical("%s; the engine ends, to be started again", why)
    return SystemExit(why)


def _claim(core: Any, block_ids: Collection[int]) -> str | None:
    """Map memory for blocks that are about to be used. Return why that failed, or None."""
    if not block_ids:
        return None
    found: str | None = _call_worker(core, "claim_kv_blocks", block_ids)
    return found


def _release_reserved(core: Any) -> None:
    """Release the memory of blocks that were reserved since the last call."""
    if block_ids := core.scheduler.kv.collect_reserved():
        _call_worker(core, "release_kv_blocks", block_ids)


def _call_worker(core: Any, method: str, *args: Any) -> Any:
    """Call a method of `worker.KvMemory`. There is one worker."""
    return core.model_executor.collective_rpc(method, args=args)[0]
