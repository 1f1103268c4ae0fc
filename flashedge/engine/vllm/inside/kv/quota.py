"""vLLM's scheduler with a KV quota that can change while requests run.

Each engine's block pool is larger than its share of the memory: it could hold what both engines
have together. The quota is how many blocks may be used at the moment. The other blocks of the pool
are *reserved*: the scheduler takes them out of the pool, so that no request can use them.

Who does what:
- The daemon decides the quota (`runtime.kv.manager`) and calls `control.set_quota`.
- This scheduler reserves or returns blocks. To shrink it takes free blocks first, then preempts.
- The worker unmaps the memory of reserved blocks, and maps it again before they return to the pool
  (`worker`, `pages`).

Which blocks are reserved depends on the device. If memory goes back in pages as small as a block
(CPU), those unused for longest. Else the last of the pool, so that whole granules become free.

Checked with vLLM 0.32.0.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from vllm.v1.core.sched.interface import PauseState
from vllm.v1.request import Request

from flashedge.engine.vllm.inside.determinism.scheduler import ReplayScheduler
from flashedge.engine.vllm.inside.keys import KV_START
from flashedge.engine.vllm.inside.kv.tensor import get_kv_range, read_settings

RequestFilter = Callable[[Request], bool]


def accept_any(request: Request) -> bool:
    return True


class QuotaScheduler(ReplayScheduler):
    """Keeps the KV blocks of requests and of the prefix cache within a quota."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._reserved: list[Any] = []
        self._newly_reserved: set[int] = set()  # ids that `collect_reserved` has not returned yet
        self._quota = self._usable_blocks
        self._preempted = 0
        self._reserves_last = KV_START in read_settings(self.vllm_config)
        if self._reserves_last:
            self.set_quota(get_kv_range().count_claimed() - 1)  # one is vLLM's null block

    # ------------------------------------------------------------ quota

    @property
    def _pool(self) -> Any:
        return self.kv_cache_manager.block_pool

    @property
    def quota(self) -> int:
        """Blocks that may be used, as last set."""
        return self._quota

    @property
    def _usable_blocks(self) -> int:
        return self._pool.num_gpu_blocks - 1  # block 0 is vLLM's null block

    @property
    def _is_settled(self) -> bool:
        """Whether as many blocks are reserved as the quota demands."""
        return len(self._reserved) == self._usable_blocks - self._quota

    def set_quota(self, blocks: int) -> int:
        """Limit the blocks that requests and the prefix cache may use. Preempts if necessary.

        The quota never falls below one request of full length. Returns the quota granted.
        """
        self._quota = self._clamp(blocks)
        self._adjust_reserve()
        return self._quota

    def list_returning(self, blocks: int) -> list[int]:
        """Ids of the blocks that such a quota would return to the pool: they need memory first."""
        return [b.block_id for b in self._reserved[self._usable_blocks - self._clamp(blocks) :]]

    def _clamp(self, blocks: int) -> int:
        longest = -(-self.max_model_len // self.cache_config.block_size)
        return max(min(blocks, self._usable_blocks), min(longest + 1, self._usable_blocks))

    def _adjust_reserve(self) -> None:
        """Reserve as many blocks as the quota demands, or return what it no longer demands.

        Preempts requests while there are too few free blocks. Blocks of a request that is just
        being freed are reserved by the next call.
        """
        target = self._usable_blocks - self._quota
        if len(self._reserved) > target:
            returned, self._reserved = self._reserved[target:], self._reserved[:target]
            self._newly_reserved.difference_update(b.block_id for b in returned)
            self._pool.free_blocks(returned)
        while len(self._reserved) < target:
            taken = self._take_free_blocks(target - len(self._reserved))
            self._reserved += taken
            self._newly_reserved.update(b.block_id for b in taken)
            if not taken and not self._preempt_one(self._blocks_reserve):
                return
        if self._reserves_last:
            self._reserved.sort(key=lambda b: -b.block_id)  # the first of them return last

    def _take_free_blocks(self, count: int) -> list[Any]:
        """Take at most `count` free blocks out of the pool."""
        if not self._reserves_last:
            return list(self._pool.get_new_blocks(min(count, self._pool.get_num_free_blocks())))
        last = self._pool.blocks[self._quota + 1 :]
        found = [b for b in last if b.ref_cnt == 0]
        self._pool.evict_blocks({b.block_id for b in found})
        self._pool.touch(found)
        return found

    def _blocks_reserve(self, request: Request) -> bool:
        """Whether the request holds blocks that have to be reserved."""
        if not self._reserves_last:
            return True
        groups = self.kv_cache_manager.get_block_ids(request.request_id)
        return any(block > self._quota for ids in groups for block in ids)

    def _preempt_one(self, is_candidate: RequestFilter = accept_any) -> bool:
        """Preempt the least important candidate that runs. False if there is none."""
        running = [request for request in self.running if is_candidate(request)]
        if not running:
            return False
        victim = max(running, key=lambda r: (r.priority, r.arrival_time))
        self.running.remove(victim)
        self._preempt_request(victim, 0.0)
        return True

    def _preempt_request(self, request: Request, *args: Any, **kwargs: Any) -> None:
        self._preempted += 1
        super()._preempt_request(request, *args, **kwargs)
        self.send_whole(request)

    def send_whole(self, request: Request) -> None:
        """Send the model runner all tokens of a request that leaves the batch, if it comes back in
        the very next step. Within a step vLLM takes requests out of the batch and not back in; we
        do it between two steps."""
        self.prev_step_scheduled_req_ids.discard(request.request_id)

    # ------------------------------------------------------------ for `control`

    @property
    def is_paused(self) -> bool:
        return bool(self.pause_state is PauseState.PAUSED_ALL)

    def pause(self) -> None:
        """Stop stepping. Requests wait."""
        self.set_pause_state(PauseState.PAUSED_ALL)

    def resume(self) -> None:
        self.set_pause_state(PauseState.UNPAUSED)

    def collect_reserved(self) -> list[int]:
        """Return the ids of the blocks that were reserved since the last call."""
        if not self._is_settled:
            self._adjust_reserve()
        ids, self._newly_reserved = sorted(self._newly_reserved), set()
        return ids

    def list_used_blocks(self) -> list[int]:
        """Ids of the blocks whose content is of use: held by requests, or found by prefix."""
        reserved = {b.block_id for b in self._reserved}
        return [
            b.block_id
            for b in self._pool.blocks
            if not b.is_null
            and b.block_id not in reserved
            and (b.ref_cnt > 0 or b.block_hash is not None)
        ]

    def drop_kv(self) -> None:
        """Forget all KV: running requests begin again, and no prefix is found."""
        while self._preempt_one():
            pass
        self._pool.evict_blocks({b.block_id for b in self._pool.blocks if b.block_hash is not None})

    def list_all_blocks(self) -> list[int]:
        return [b.block_id for b in self._pool.blocks if not b.is_null]

    def list_pool_blocks(self) -> list[int]:
        """Ids of the blocks that are not reserved: they must have memory."""
        reserved = {b.block_id for b in self._reserved}
        return [block for block in self.list_all_blocks() if block not in reserved]

    # ------------------------------------------------------------ view

    def view(self) -> dict[str, Any]:
        """The fields of `engine.base.EngineView` that only the scheduler knows."""
        if not self._is_settled:
            self._adjust_reserve()
        free = self._pool.get_num_free_blocks()
        return {
            "running": len(self.running),
            "waiting": len(self.waiting),
            "blocks_used": self._usable_blocks - len(self._reserved) - free,
            "blocks_total": self._usable_blocks,
            "quota_blocks": self._quota,
            "block_tokens": self.cache_config.block_size,
            "preemptions": self._preempted,
            "replays": dict(self.replay_counters),
        }
