"""vLLM's scheduler with what FlashEdge needs inside it: step boundaries and a KV quota.

Boundaries are found here, not by stop strings in the front end: the front end sees tokens a step
or more late, and speculation (arXiv 2509.00195 §4.1) needs the boundary known where slots are
filled. The quota is a balloon: blocks taken out of the pool and held by nobody.

Checked with vLLM 0.32.0.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from multiprocessing import connection
from typing import Any

from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.engine.core import EngineCore
from vllm.v1.request import Request, RequestStatus

from flashedge.engine.vllm.noise import ARGS_KEY
from flashedge.search.steps import BoundaryRule

BOUNDARY = "boundary"


class EdgeScheduler(Scheduler):
    """Ends requests that ask for it at a step's boundary; keeps KV blocks within a quota."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        _die_with_daemon()
        config = self.vllm_config.additional_config.get(ARGS_KEY, {})
        rule = config.get("boundary")
        self._rule = BoundaryRule.from_json(rule) if rule else None
        self._balloon: list[Any] = []
        self._quota = self._usable_blocks
        self._preempted = 0

    # ------------------------------------------------------------ boundaries

    def _update_request_with_output(
        self, request: Request, new_token_ids: list[int], is_stale: bool = False
    ) -> tuple[list[int], bool]:
        args = _args(request)
        if self._rule is None or not args or not args.get("to_boundary"):
            return super()._update_request_with_output(request, new_token_ids, is_stale)
        kept: list[int] = []
        for token in new_token_ids:
            previous = request.output_token_ids[-1] if request.num_output_tokens else None
            _, stopped = super()._update_request_with_output(request, [token], is_stale)
            kept.append(token)
            if self._rule.ends_step(previous, token):
                request.status = RequestStatus.FINISHED_STOPPED
                request.stop_reason = BOUNDARY
                stopped = True
            if stopped:
                return kept, True
        return kept, False

    # ------------------------------------------------------------ quota

    @property
    def _pool(self) -> Any:
        return self.kv_cache_manager.block_pool

    @property
    def _usable_blocks(self) -> int:
        return self._pool.num_gpu_blocks - 1  # block 0 is vLLM's null block

    def set_quota(self, blocks: int) -> int:
        """Bound the blocks that requests and the prefix cache may hold. Preempts when short.

        At least one request of full length must fit: below that the bound is raised to it.
        Returns the quota granted.
        """
        longest = -(-self.max_model_len // self.cache_config.block_size)
        self._quota = max(min(blocks, self._usable_blocks), min(longest + 1, self._usable_blocks))
        self._inflate()
        return self._quota

    def _inflate(self) -> None:
        """Move the balloon towards its size: at once when it shrinks or blocks are free,
        by preempting the least important running requests otherwise."""
        want = self._usable_blocks - self._quota
        if len(self._balloon) > want:
            given, self._balloon = self._balloon[want:], self._balloon[:want]
            self._pool.free_blocks(given)
        while len(self._balloon) < want:
            free = self._pool.get_num_free_blocks()
            if free:
                self._balloon += self._pool.get_new_blocks(min(free, want - len(self._balloon)))
            elif self.running:
                victim = max(self.running, key=lambda r: (r.priority, r.arrival_time))
                self.running.remove(victim)
                self._preempt_request(victim, 0.0)
            else:
                return  # blocks of a request that is being freed: the next look completes it

    def _preempt_request(self, request: Request, *args: Any, **kwargs: Any) -> None:
        self._preempted += 1
        super()._preempt_request(request, *args, **kwargs)

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


def _args(request: Request) -> dict[str, Any] | None:
    params = request.sampling_params
    return (params.extra_args or {}).get(ARGS_KEY) if params else None


def _die_with_daemon() -> None:
    """Have this engine process end when the daemon is killed, so that none is orphaned.

    Linux's PR_SET_PDEATHSIG would watch the fork server, which itself lives as long as its
    children do; multiprocessing hands every child a pipe that only the daemon holds open.
    """
    daemon = multiprocessing.parent_process()
    if daemon is None:
        return  # in the daemon's own process (tests)

    def watch() -> None:
        connection.wait([daemon.sentinel])
        os.kill(os.getpid(), signal.SIGKILL)

    threading.Thread(target=watch, name="die-with-daemon", daemon=True).start()


# Reached through `AsyncLLM.engine_core.call_utility_async("flashedge_…")`, between engine steps.


def _view(self: EngineCore) -> dict[str, int]:
    return self.scheduler.view()


def _set_quota(self: EngineCore, blocks: int) -> int:
    return self.scheduler.set_quota(blocks)


EngineCore.flashedge_view = _view  # type: ignore[attr-defined]
EngineCore.flashedge_set_quota = _set_quota  # type: ignore[attr-defined]
