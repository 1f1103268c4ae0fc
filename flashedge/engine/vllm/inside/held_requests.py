"""vLLM's scheduler with requests that are neither running nor waiting: held, with their KV.

vLLM knows no such state. A held request is PREEMPTED, in no queue, and has its blocks; put back
in line it is one of those that vLLM resumes with their KV (`kv_holding_waiting`). It takes no
place in a batch, and gives up its blocks before a standard request has to.

Checked with vLLM 0.32.0.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from vllm.v1.request import Request, RequestStatus

from flashedge.engine.vllm.inside.draft_requests import Work, noise_args
from flashedge.engine.vllm.inside.kv.quota import Chosen, QuotaScheduler, anyone
from flashedge.scheduling.speculation.drafts import Draft

COUNTERS = (
    "kept_steps",
    "kept_tokens",
    "drawn_tokens",
    "stopped",
    "preempted",
    "dropped_kv",
    "offloaded",
)


class HoldingScheduler(QuotaScheduler):
    """Knows which of its requests are drafts, and takes memory from them first.

    counters: since the start: steps that began with tokens drawn ahead, and those tokens; tokens
    drawn ahead; drafts taken out of the batch; those preempted there, by need of memory; those (and
    waiting steps) that lost their KV for others; those that had KV when all KV was offloaded.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._works: dict[str, Work] = {}  # by the id of vLLM's request
        self._drafting: dict[Draft, Work] = {}
        self.counters = dict.fromkeys(COUNTERS, 0)
        self._allocate = self.kv_cache_manager.allocate_slots
        self.kv_cache_manager.allocate_slots = self._allocate_or_reclaim

    def step_of(self, request: Request) -> tuple[int, bool]:
        """(tokens generated before the step that it is at, whether a boundary ends that)."""
        work = self._works.get(request.request_id)
        if work is None:
            return 0, bool(noise_args(request).get("to_boundary"))
        return work.start, work.to_boundary

    def _is_draft(self, request: Request) -> bool:
        work = self._works.get(request.request_id)
        return work is not None and work.draft is not None

    def _hold(self, request: Request) -> None:
        """Out of the batch. Its blocks stay."""
        self.running.remove(request)
        request.status = RequestStatus.PREEMPTED

    def _unqueue(self, request: Request) -> None:
        for queue in (self.waiting, self.kv_holding_waiting):
            if request in queue:
                queue.remove_request(request)

    def _drop(self, works: Collection[Work]) -> None:
        """They are over, and nobody is told."""
        for work in works:
            del self._works[work.request.request_id]
            if work.draft is not None:
                self._drafting.pop(work.draft, None)
        if works:
            super().finish_requests(
                [work.request.request_id for work in works], RequestStatus.FINISHED_ABORTED
            )

    # ------------------------------------------------------------ memory

    def _preempt_request(self, request: Request, *args: Any, **kwargs: Any) -> None:
        super()._preempt_request(request, *args, **kwargs)
        if self._is_draft(request):
            self.waiting.remove_request(request)
            self.counters["preempted"] += 1

    def _allocate_or_reclaim(self, request: Request, *args: Any, **kwargs: Any) -> Any:
        """Blocks for a standard request are taken from those who do not run before others are
        preempted for it."""
        while True:
            blocks = self._allocate(request, *args, **kwargs)
            if blocks is not None or self._is_draft(request) or not self._reclaim(request):
                return blocks

    def kv_leaves(self) -> None:
        """All KV is about to be offloaded."""
        self.counters["offloaded"] += sum(work.has_kv for work in self._drafting.values())

    def _give_way(self, chosen: Chosen = anyone) -> bool:
        return self._reclaim(chosen=chosen) or super()._give_way(chosen)

    def _reclaim(self, spared: Request | None = None, chosen: Chosen = anyone) -> bool:
        """Free the KV of the last draft that does not run, else of the last step that waits; of the
        chosen."""
        held = [
            draft
            for draft, work in self._drafting.items()
            if work.has_kv and not work.is_running and chosen(work.request)
        ]
        waiting = [r for r in self.kv_holding_waiting if r is not spared and chosen(r)]
        if held:
            request = self._drafting[max(held, key=lambda draft: draft.rank)].request
        elif waiting:
            request = waiting[-1]
        else:
            return False
        self._free_request_blocks(request)
        request.num_computed_tokens = 0
        if request in self.kv_holding_waiting:
            self.kv_holding_waiting.remove_request(request)
            self.waiting.add_request(request)
        self.counters["dropped_kv"] += 1
        return True
