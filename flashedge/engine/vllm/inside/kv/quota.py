"""A scheduler's KV quota, which can change while requests run, and how the daemon changes it.

Each engine's block pool could hold the KV memory of both engines. The quota is how many blocks may
be used at the moment. The others are *reserved*: taken out of the pool, so that no request gets
them. The daemon (`runtime.kv.manager`) calls, between two steps, the functions at the end of this
file. The worker unmaps the memory of reserved blocks, and maps it again before they return to the
pool.

If memory goes back in pages as small as a block (CPU), the blocks unused for longest are reserved.
Otherwise the last blocks of the pool are, so that whole granules become free.

Checked with vLLM 0.32.0.
"""

import logging
from collections.abc import Callable, Collection
from typing import Any

from vllm.v1.core.sched.interface import PauseState
from vllm.v1.request import Request

from flashedge.engine.vllm.inside import start_stages
from flashedge.engine.vllm.inside.keys import KV_START, read_config
from flashedge.engine.vllm.inside.kv.tensor import get_kv_range

RequestFilter = Callable[[Request], bool]


class KvQuota:
    def __init__(self, scheduler: Any, reclaim: Callable[[RequestFilter], bool]) -> None:
        self._scheduler, self._reclaim = scheduler, reclaim
        self._pool = scheduler.kv_cache_manager.block_pool
        self._usable_blocks = self._pool.num_gpu_blocks - 1  # block 0 is vLLM's null block
        self._block_tokens = int(scheduler.cache_config.block_size)
        self.preempted = 0
        self._reserved: list[Any] = []
        self._newly_reserved: set[int] = set()  # ids that `collect_reserved` has not returned yet
        self.quota = self._usable_blocks
        """Blocks that may be used, as last set."""
        self._reserves_last = KV_START in read_config(scheduler.vllm_config)
        if self._reserves_last:
            self.set_quota(get_kv_range().count_claimed() - 1)  # one is vLLM's null block

    # ------------------------------------------------------------ quota

    def set_quota(self, blocks: int) -> int:
        """Preempts if necessary. Returns the quota granted: at least one request of full length."""
        self.quota = self._clamp(blocks)
        self._adjust_reserve()
        return self.quota

    def list_returning(self, blocks: int) -> list[int]:
        return [b.block_id for b in self._reserved[self._usable_blocks - self._clamp(blocks) :]]

    def _clamp(self, blocks: int) -> int:
        longest = -(-self._scheduler.max_model_len // self._block_tokens)
        return max(min(blocks, self._usable_blocks), min(longest + 1, self._usable_blocks))

    def _adjust_reserve(self) -> None:
        """Preempts requests while there are too few free blocks. Blocks of a request that is just
        being freed are reserved by the next call."""
        target = self._usable_blocks - self.quota
        if len(self._reserved) == target:
            return
        if len(self._reserved) > target:
            returned, self._reserved = self._reserved[target:], self._reserved[:target]
            self._newly_reserved.difference_update(b.block_id for b in returned)
            self._pool.free_blocks(returned)
        while len(self._reserved) < target:
            taken = self._take_free_blocks(target - len(self._reserved))
            self._reserved += taken
            self._newly_reserved.update(b.block_id for b in taken)
            if not taken and not self._preempt_one(self._blocks_reserve):
                break
        if self._reserves_last:
            self._reserved.sort(key=lambda b: -b.block_id)  # the first of them return last

    def _take_free_blocks(self, count: int) -> list[Any]:
        if not self._reserves_last:
            return list(self._pool.get_new_blocks(min(count, self._pool.get_num_free_blocks())))
        found = [b for b in self._pool.blocks[self.quota + 1 :] if b.ref_cnt == 0]
        self._pool.evict_blocks({b.block_id for b in found})
        self._pool.touch(found)
        return found

    def _blocks_reserve(self, request: Request) -> bool:
        if not self._reserves_last:
            return True
        groups = self._scheduler.kv_cache_manager.get_block_ids(request.request_id)
        return any(block > self.quota for ids in groups for block in ids)

    def _preempt_one(self, is_candidate: RequestFilter) -> bool:
        """Preempt the least important candidate, first of all one that does not run. False if there
        is none."""
        if self._reclaim(is_candidate):
            return True
        running = self._scheduler.running
        candidates = [request for request in running if is_candidate(request)]
        if not candidates:
            return False
        victim = max(candidates, key=lambda r: (r.priority, r.arrival_time))
        running.remove(victim)
        self._scheduler._preempt_request(victim, 0.0)
        return True

    # ------------------------------------------------------------ for the functions below

    def collect_reserved(self) -> list[int]:
        self._adjust_reserve()
        ids, self._newly_reserved = sorted(self._newly_reserved), set()
        return ids

    def list_used_blocks(self) -> list[int]:
        """Ids of the blocks whose content is of use: held by requests, or found by prefix."""
        found = (self._pool.blocks[number] for number in self.list_pool_blocks())
        return [b.block_id for b in found if b.ref_cnt > 0 or b.block_hash is not None]

    def drop_kv(self) -> None:
        while self._preempt_one(lambda request: True):
            pass
        self._pool.evict_blocks({b.block_id for b in self._pool.blocks if b.block_hash is not None})

    def list_all_blocks(self) -> list[int]:
        return [b.block_id for b in self._pool.blocks if not b.is_null]

    def list_pool_blocks(self) -> list[int]:
        reserved = {b.block_id for b in self._reserved}
        return [block for block in self.list_all_blocks() if block not in reserved]

    # ------------------------------------------------------------ view

    def view(self) -> dict[str, Any]:
        """The fields of `engine.base.EngineView` that only the scheduler knows."""
        self._adjust_reserve()
        free = self._pool.get_num_free_blocks()
        return {
            "running": len(self._scheduler.running),
            "waiting": len(self._scheduler.waiting),
            "blocks_used": self._usable_blocks - len(self._reserved) - free,
            "blocks_total": self._usable_blocks,
            "quota_blocks": self.quota,
            "block_tokens": self._block_tokens,
            "preemptions": self.preempted,
        }


# ---------------------------------------------------------------- called by the daemon


log = logging.getLogger(__name__)


def begin(core: Any) -> dict[str, Any]:
    """The first call to a started engine: its view, and its worker's KV memory."""
    start_stages.end()
    return view(core) | _call_worker(core, "describe_kv_memory")


def measure_memory(core: Any, kv_bytes: int) -> dict[str, int]:
    return _call_worker(core, "measure_step_memory", kv_bytes)


def view(core: Any) -> dict[str, Any]:
    _release_reserved(core)
    return core.scheduler.view()


def set_quota(core: Any, blocks: int) -> int:
    """Set the quota and return it. It stays as it was if there is no memory for a larger one."""
    kv = core.scheduler.kv
    if core.scheduler.pause_state is not PauseState.PAUSED_ALL:  # else `restore` claims the memory
        shortage = _claim(core, kv.list_returning(blocks))
        if shortage is not None:
            log.warning("no memory for %d KV blocks (%s): keeping %d", blocks, shortage, kv.quota)
            blocks = kv.quota
    granted = int(kv.set_quota(blocks))
    _release_reserved(core)
    return granted


def offload(core: Any, keep: bool, folder: str, to_file: bool) -> int:
    """Pause the engine, save its KV and release all KV memory. Returns the bytes saved.

    With `keep` false the KV is dropped, and computed again later; so it is if saving fails.
    """
    kv = core.scheduler.kv
    core.scheduler.set_pause_state(PauseState.PAUSED_ALL)
    core.scheduler.drafts.count_offloaded()
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
    """Undo `offload`. Returns the bytes loaded.

    The quota becomes smaller if there is no memory for all of it. Raises SystemExit if there is
    none for one request, or the device fails: the daemon restarts the engine.
    """
    kv = core.scheduler.kv
    try:
        while (shortage := _claim(core, kv.list_pool_blocks())) is not None:
            quota = kv.quota
            if (lower := kv.set_quota(quota // 2)) >= quota:
                raise _end_process(
                    f"no memory for the KV of one request ({quota} blocks): {shortage}"
                )
            log.warning("no memory for %d KV blocks (%s): trying %d", quota, shortage, lower)
    except Exception as error:  # e.g. the driver of the device
        raise _end_process(f"no memory could be mapped: {error}") from error
    try:
        loaded = _call_worker(core, "load_kv_blocks", kv.list_used_blocks())
    except Exception:  # e.g. the file of saved KV is gone
        log.exception("the KV could not be loaded: it is computed again")
        kv.drop_kv()
        loaded = 0
    core.scheduler.set_pause_state(PauseState.UNPAUSED)
    return int(loaded)


def _end_process(why: str) -> SystemExit:
    log.critical("%s; the engine ends, to be started again", why)
    return SystemExit(why)


def _claim(core: Any, block_ids: Collection[int]) -> str | None:
    return _call_worker(core, "claim_kv_blocks", block_ids) if block_ids else None


def _release_reserved(core: Any) -> None:
    if block_ids := core.scheduler.kv.collect_reserved():
        _call_worker(core, "release_kv_blocks", block_ids)


def _call_worker(core: Any, method: str, *args: Any) -> Any:
    return core.model_executor.collective_rpc(method, args=args)[0]
