"""vLLM's scheduler with a KV quota that moves while requests run.

The quota is a balloon: blocks taken out of the pool and held by nobody, whose memory `kv_memory`
gives back. Which ones: those that were used longest ago, where memory goes back by pages as small
as a block; else the last of the pool, so that memory is free by the piece.

Checked with vLLM 0.32.0.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.request import Request

from flashedge.engine.vllm.inside.keys import KV_START
from flashedge.engine.vllm.inside.kv.tensor import read_settings, start_blocks

Chosen = Callable[[Request], bool]


def anyone(request: Request) -> bool:
    return True


class QuotaScheduler(Scheduler):
    """Keeps the KV blocks of requests and of the prefix cache within a quota."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._balloon: list[Any] = []
        self._quota = self._usable_blocks
        self._preempted = 0
        self._untold: set[int] = set()  # block ids that came into the balloon
        self._from_the_end = KV_START in read_settings(self.vllm_config)
        if self._from_the_end:
            self.set_quota(start_blocks(self.vllm_config, self._usable_blocks))

    # ------------------------------------------------------------ quota

    @property
    def _pool(self) -> Any:
        return self.kv_cache_manager.block_pool

    @property
    def quota(self) -> int:
        """Blocks that may be held, as it was last set."""
        return self._quota

    @property
    def _usable_blocks(self) -> int:
        return self._pool.num_gpu_blocks - 1  # block 0 is vLLM's null block

    def set_quota(self, blocks: int) -> int:
        """Bound the blocks that requests and the prefix cache may hold. Preempts when short.

        At least one request of full length must fit: below that the bound is raised to it.
        Returns the quota granted.
        """
        self._quota = self._allowed(blocks)
        self._inflate()
        return self._quota

    def leaving(self, blocks: int) -> list[int]:
        """Ids of the blocks that would come back into the pool by such a quota: they must have
        memory by then."""
        return [b.block_id for b in self._balloon[self._usable_blocks - self._allowed(blocks) :]]

    def _allowed(self, blocks: int) -> int:
        longest = -(-self.max_model_len // self.cache_config.block_size)
        return max(min(blocks, self._usable_blocks), min(longest + 1, self._usable_blocks))

    def _inflate(self) -> None:
        """Move the balloon towards its size: at once when it shrinks or blocks are free, by having
        requests give way otherwise."""
        want = self._usable_blocks - self._quota
        if len(self._balloon) > want:
            given, self._balloon = self._balloon[want:], self._balloon[:want]
            self._untold.difference_update(b.block_id for b in given)
            self._pool.free_blocks(given)
        while len(self._balloon) < want:
            taken = self._free_ones(want - len(self._balloon))
            self._balloon += taken
            self._untold.update(b.block_id for b in taken)
            if not taken and not self._give_way(self._in_the_way):
                return  # blocks of a request that is being freed: the next look completes it
        if self._from_the_end:
            self._balloon.sort(key=lambda b: -b.block_id)  # the first of them come back last

    def _free_ones(self, count: int) -> list[Any]:
        """At most so many free blocks, out of the pool."""
        if not self._from_the_end:
            return list(self._pool.get_new_blocks(min(count, self._pool.get_num_free_blocks())))
        last = self._pool.blocks[self._quota + 1 :]
        found = [b for b in last if b.ref_cnt == 0]
        self._pool.evict_blocks({b.block_id for b in found})
        self._pool.touch(found)
        return found

    def _in_the_way(self, request: Request) -> bool:
        """Whether the balloon can have what it lacks of the request's blocks."""
        if not self._from_the_end:
            return True
        groups = self.kv_cache_manager.get_block_ids(request.request_id)
        return any(block > self._quota for ids in groups for block in ids)

    def _give_way(self, chosen: Chosen = anyone) -> bool:
        """Preempt the least important of the chosen that run. False when none does."""
        running = [request for request in self.running if chosen(request)]
        if not running:
            return False
        victim = max(running, key=lambda r: (r.priority, r.arrival_time))
        self.running.remove(victim)
        self._preempt_request(victim, 0.0)
        return True

    def _preempt_request(self, request: Request, *args: Any, **kwargs: Any) -> None:
        self._preempted += 1
        super()._preempt_request(request, *args, **kwargs)

    # ------------------------------------------------------------ what `kv_memory` asks

    def take_ballooned(self) -> list[int]:
        """Ids of the blocks that came into the balloon since they were last asked for."""
        if len(self._balloon) != self._usable_blocks - self._quota:
            self._inflate()
        ids, self._untold = sorted(self._untold), set()
        return ids

    def kept_blocks(self) -> list[int]:
        """Ids of the blocks whose content is of use: held by requests, or found by prefix."""
        balloon = {b.block_id for b in self._balloon}
        return [
            b.block_id
            for b in self._pool.blocks
            if not b.is_null
            and b.block_id not in balloon
            and (b.ref_cnt > 0 or b.block_hash is not None)
        ]

    def drop_kv(self) -> None:
        """Forget all KV: who runs begins again, no prefix is found."""
        while self._give_way():
            pass
        self._pool.evict_blocks({b.block_id for b in self._pool.blocks if b.block_hash is not None})

    def all_blocks(self) -> list[int]:
        return [b.block_id for b in self._pool.blocks if not b.is_null]

    def pool_blocks(self) -> list[int]:
        """Ids of the blocks that are not in the balloon: they must have memory."""
        balloon = {b.block_id for b in self._balloon}
        return [block for block in self.all_blocks() if block not in balloon]

    # ------------------------------------------------------------ view

    def view(self) -> dict[str, int]:
        """The fields of `engine.base.EngineView` that only the scheduler knows."""
        if len(self._balloon) != self._usable_blocks - self._quota:
            self._inflate()
        free = self._pool.get_num_free_blocks()
        return {
            "running": len(self.running),
            "waiting": len(self.waiting),
            "blocks_used": self._usable_blocks - len(self._balloon) - free,
            "blocks_total": self._usable_blocks,
            "quota_blocks": self._quota,
            "block_tokens": self.cache_config.block_size,
            "preemptions": self._preempted,
        }
