"""A scheduler's KV quota, which can change while requests run, and how the daemon changes it.

Each engine's block pool could hold the KV memory of both engines. The quota is how many blocks may
be used at the moment. The others are *reserved*: taken out of the pool, so that no request gets
them. The worker unmaps the memory of reserved blocks, and maps it again before they return to the
pool. The daemon calls the functions at the end of this file between two steps.

An engine that starts with a part of its memory (`KV_START`, on CUDA) reserves the last blocks of
the pool, so that whole granules become free. Others reserve the blocks that were unused for
longest. Checked with vLLM 0.32.0.
"""

import logging
from collections import Counter
from collections.abc import Callable, Collection
from math import ceil
from typing import Any

from vllm.v1.core.sched.interface import PauseState
from vllm.v1.request import Request

from flashedge.engine.vllm.inside import start_stages
from flashedge.engine.vllm.inside.keys import KV_START, read_config
from flashedge.engine.vllm.inside.kv.tensor import get_kv_range

log = logging.getLogger(__name__)

RequestFilter = Callable[[Request], bool]
MOVED = ("saved_bytes", "loaded_bytes", "mapped_bytes", "unmapped_bytes")
"""What is counted since the process started: KV that was copied to host memory and back, and memory
that was given to blocks and taken from them. On a CPU memory comes back when it is written."""


class KvQuota:
    """Reserves as many blocks as the quota excludes."""

    def __init__(self, scheduler: Any, reclaim: Callable[[RequestFilter], bool]) -> None:
        self._scheduler, self._reclaim = scheduler, reclaim
        self._pool = scheduler.kv_cache_manager.block_pool
        self._usable_blocks = self._pool.num_gpu_blocks - 1  # block 0 is vLLM's null block
        self._longest_blocks = _count_longest(scheduler)
        self._block_tokens = int(scheduler.cache_config.block_size)
        if len(scheduler.kv_cache_config.kv_cache_groups) > 1:
            # A path has blocks of each group, of which some hold few of its tokens.
            self._block_tokens = max(1, scheduler.max_model_len // self._longest_blocks)
        self.preempted = 0
        self.moved = Counter(dict.fromkeys(MOVED, 0))
        self.away = range(1, 1)
        """Blocks whose memory `offload` gave up, and `restore` has not claimed again."""
        self._reserved: list[Any] = []
        self._newly_reserved: set[int] = set()  # ids that `collect_reserved` has not returned yet
        self.quota = self._usable_blocks
        """Blocks that may be used. Block 0 does not count."""
        self._reserves_last = KV_START in read_config(scheduler.vllm_config)
        if self._reserves_last:
            self.set_quota(get_kv_range().count_claimed() - 1)  # one is vLLM's null block

    def set_quota(self, blocks: int) -> int:
        """Set the quota, and preempt requests if necessary. Returns the blocks granted: at least
        those of one request of full length."""
        self.quota = self._clamp(blocks)
        self._adjust_reserve()
        return self.quota

    def list_returning(self, blocks: int) -> list[int]:
        """The ids of reserved blocks that would return to the pool under this quota."""
        return [b.block_id for b in self._reserved[self._usable_blocks - self._clamp(blocks) :]]

    def _clamp(self, blocks: int) -> int:
        """Limit a quota to the usable blocks, at least those of one request and a spare one."""
        least = min(self._longest_blocks + 1, self._usable_blocks)
        return max(min(blocks, self._usable_blocks), least)

    def _adjust_reserve(self) -> None:
        """Reserve or return blocks until the quota is kept. Preempts requests while too few blocks
        are free. When none is left to preempt, the next call goes on."""
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
            if not taken and not self._preempt_one(self._holds_excess):
                break
        if self._reserves_last:
            self._reserved.sort(key=lambda b: -b.block_id)  # the last of the list return first

    def _take_free_blocks(self, count: int) -> list[Any]:
        if not self._reserves_last:
            return list(self._pool.get_new_blocks(min(count, self._pool.get_num_free_blocks())))
        found = [b for b in self._pool.blocks[self.quota + 1 :] if b.ref_cnt == 0]
        self._pool.evict_blocks({b.block_id for b in found})
        self._pool.touch(found)
        return found

    def _holds_excess(self, request: Request) -> bool:
        """Whether the request holds a block that the quota excludes."""
        if not self._reserves_last:
            return True
        groups = self._scheduler.kv_cache_manager.get_block_ids(request.request_id)
        return any(block > self.quota for ids in groups for block in ids)

    def _preempt_one(self, is_candidate: RequestFilter) -> bool:
        """Preempt an idle candidate, else the least important one. False if there is none."""
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
        """Return the ids of the blocks that were reserved since the last call."""
        self._adjust_reserve()
        ids, self._newly_reserved = sorted(self._newly_reserved), set()
        return ids

    def list_used_blocks(self, among: range) -> list[int]:
        """Ids of the blocks whose content is of use: held by requests, or found by prefix."""
        found = (self._pool.blocks[block_id] for block_id in self.list_pool_blocks(among))
        return [b.block_id for b in found if b.ref_cnt > 0 or b.block_hash is not None]

    def drop_kv(self) -> None:
        """Preempt all requests and empty the prefix cache."""
        while self._preempt_one(lambda request: True):
            pass
        self._pool.evict_blocks({b.block_id for b in self._pool.blocks if b.block_hash is not None})

    def list_pool_blocks(self, among: range) -> list[int]:
        reserved = {b.block_id for b in self._reserved}
        return [block for block in among if block not in reserved]

    def find_end(self, share: float) -> int:
        """The block behind a first share of the pool."""
        return 1 + ceil(share * self._usable_blocks)

    def view(self) -> dict[str, Any]:
        """The fields of `engine.base.EngineView` that only the scheduler knows."""
        self._adjust_reserve()
        free = self._pool.get_num_free_blocks()
        return {
            "running": len(self._scheduler.running),
            "waiting": len(self._scheduler.waiting) + len(self._scheduler.kv_holding_waiting),
            "blocks_used": self._usable_blocks - len(self._reserved) - free,
            "blocks_total": self._usable_blocks,
            "quota_blocks": self.quota,
            "block_tokens": self._block_tokens,
            "preemptions": self.preempted,
            "kv_moved": dict(self.moved),
        }


def _count_longest(scheduler: Any) -> int:
    """Count the blocks of a request of full length. A model whose layers keep KV in several ways
    has a group of layers for each, and a request has blocks for each group."""
    specs = (group.kv_cache_spec for group in scheduler.kv_cache_config.kv_cache_groups)
    config = scheduler.vllm_config
    return sum(-(-s.max_memory_usage_bytes(config) // s.page_size_bytes) for s in specs)


# ---------------------------------------------------------------- called by the daemon


def begin(core: Any) -> dict[str, Any]:
    """Answer the first call to a started engine: its view, and its worker's KV memory."""
    start_stages.end()
    return view(core) | _call_worker(core, "describe_kv_memory")


def measure_memory(core: Any) -> dict[str, int]:
    return _call_worker(core, "measure_step_memory")


def view(core: Any) -> dict[str, Any]:
    _release_reserved(core)
    return core.scheduler.view()


def set_quota(core: Any, blocks: int) -> int:
    """Set the quota and return it. Without memory for a larger one it stays as it was."""
    kv = core.scheduler.kv
    if core.scheduler.pause_state is not PauseState.PAUSED_ALL:  # if paused, `restore` claims it
        shortage = _claim(core, kv.list_returning(blocks))
        if shortage is not None:
            log.warning("no memory for %d KV blocks (%s): keeping %d", blocks, shortage, kv.quota)
            blocks = kv.quota
    granted = int(kv.set_quota(blocks))
    _release_reserved(core)
    return granted


def offload(core: Any, keep: bool, share: float) -> int:
    """Pause the engine, save its KV in this first share of the pool, and release the memory there.
    Further calls with larger shares go on. Returns the bytes saved. If `keep` is false or saving
    fails, the KV is computed again later."""
    kv = core.scheduler.kv
    core.scheduler.set_pause_state(PauseState.PAUSED_ALL)
    if not kv.away:
        core.scheduler.drafts.count_offloaded()
    if not keep:
        kv.drop_kv()
    leaving = range(kv.away.stop, max(kv.away.stop, kv.find_end(share)))
    kv.away = range(kv.away.start, leaving.stop)
    saved = 0
    try:
        saved = int(_call_worker(core, "save_kv_blocks", kv.list_used_blocks(leaving)))
    except Exception:  # e.g. host memory is short
        log.exception("the KV could not be saved: it will be computed again")
        kv.drop_kv()
    kv.moved["saved_bytes"] += saved
    _release(core, leaving)
    return saved


def restore(core: Any, share: float) -> int:
    """Undo `offload` for this first share of the pool, and go on if that is all of it. Returns the
    bytes loaded. If memory is short, nothing happens for a share, and the quota becomes smaller for
    the whole. Raises SystemExit, so that the daemon restarts the engine, if even one request does
    not fit or the device fails."""
    kv, is_whole = core.scheduler.kv, share >= 1
    coming = range(kv.away.start, kv.find_end(share))
    if not is_whole and not kv.away:
        return 0
    try:
        while (shortage := _claim(core, kv.list_pool_blocks(coming))) is not None:
            if not is_whole:
                return 0  # the other engine has not given it back yet
            quota = kv.quota
            if (lower := kv.set_quota(quota // 2)) >= quota:
                raise _log_exit(f"no memory for the KV of one request ({quota} blocks): {shortage}")
            log.warning("no memory for %d KV blocks (%s): trying %d", quota, shortage, lower)
    except Exception as error:  # e.g. the driver of the device
        raise _log_exit(f"no memory could be mapped: {error}") from error
    loaded, used = 0, kv.list_used_blocks(coming)
    try:
        loaded = int(_call_worker(core, "load_kv_blocks", used, coming.stop))
    except Exception:  # e.g. no memory for the copy
        log.exception("the KV could not be loaded: it will be computed again")
        kv.drop_kv()
    kv.moved["loaded_bytes"] += loaded
    kv.away = range(coming.stop, kv.away.stop)
    if is_whole:
        kv.away = range(kv.find_end(0), kv.find_end(0))
        core.scheduler.set_pause_state(PauseState.UNPAUSED)
    return loaded


def _log_exit(why: str) -> SystemExit:
    log.critical("%s; the engine ends, to be started again", why)
    return SystemExit(why)


def _claim(core: Any, block_ids: Collection[int]) -> str | None:
    """Returns None, or why there is too little memory."""
    found = _call_worker(core, "claim_kv_blocks", block_ids) if block_ids else 0
    if isinstance(found, str):
        return found
    core.scheduler.kv.moved["mapped_bytes"] += found
    return None


def _release(core: Any, block_ids: Collection[int]) -> None:
    """Raises SystemExit if the memory can't be given back: only the end of the process does."""
    try:
        freed = _call_worker(core, "release_kv_blocks", block_ids) if block_ids else 0
    except Exception as error:
        raise _log_exit(f"memory could not be given back: {error}") from error
    core.scheduler.kv.moved["unmapped_bytes"] += freed


def _release_reserved(core: Any) -> None:
    _release(core, core.scheduler.kv.collect_reserved())


def _call_worker(core: Any, method: str, *args: Any) -> Any:
    return core.model_executor.collective_rpc(method, args=args)[0]
