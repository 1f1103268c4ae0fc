"""vLLM's scheduler with paused drafts: requests that keep their KV without running or waiting.

vLLM has no such state. A paused request has the status PREEMPTED, is in no queue, and keeps its
blocks. Put back in line, it is one of those that vLLM resumes with their KV (`kv_holding_waiting`).
It takes no slot of a batch, and loses its blocks before a standard request has to.

An asynchronous engine may be computing a token of a request that is paused. vLLM has a state for
that, too: the token is *stale*. It is delivered like any other, and the request does not go on
before.

Checked with vLLM 0.32.0.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from vllm.v1.request import Request, RequestStatus

from flashedge.engine.vllm.inside.draft_requests import StepJob, read_noise_args
from flashedge.engine.vllm.inside.keys import BOUNDARY
from flashedge.engine.vllm.inside.kv.quota import QuotaScheduler, RequestFilter, accept_any
from flashedge.scheduling.speculation.drafts import Draft

COUNTERS = (
    "kept_steps",  # steps that adopted a draft's tokens
    "kept_tokens",  # the tokens that these adopted
    "drawn_tokens",  # tokens drawn for drafts
    "paused",  # drafts taken out of the batch because their slot was needed
    "preempted",  # drafts taken out of the batch because memory was short
    "dropped_kv",  # drafts and waiting steps that lost their KV to others
    "reordered",  # steps before which the waiting requests changed their order
    "offloaded",  # drafts that had KV when all KV was offloaded
)


class PausingScheduler(QuotaScheduler):
    """Knows which of its requests are drafts, and takes memory from them first."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._jobs: dict[str, StepJob] = {}
        """By the id of vLLM's request."""
        self._draft_jobs: dict[Draft, StepJob] = {}
        self.counters = dict.fromkeys(COUNTERS, 0)
        """Since the start of the process."""

    def locate_step(self, request: Request) -> tuple[int, str | None]:
        """(tokens generated before the request's current step, name of the rule that ends it)."""
        job = self._jobs.get(request.request_id)
        if job is None:
            return 0, read_noise_args(request).get(BOUNDARY)
        return job.start, job.boundary

    def _is_draft(self, request: Request) -> bool:
        job = self._jobs.get(request.request_id)
        return job is not None and job.draft is not None

    def _pause(self, request: Request) -> None:
        """Take a draft's request out of the batch. It keeps its blocks."""
        self.running.remove(request)
        self._mark_paused(request)

    def _mark_paused(self, request: Request) -> None:
        """Give a request that leaves the batch the state of a paused one."""
        request.status = RequestStatus.PREEMPTED
        request.num_stale_output_tokens = request.num_in_flight_tokens
        request.drop_stale_output = False
        request.num_output_placeholders = 0
        self.send_whole(request)

    def _unqueue(self, request: Request) -> None:
        for queue in (self.waiting, self.kv_holding_waiting):
            if request in queue:
                queue.remove_request(request)

    def _drop(self, jobs: Collection[StepJob]) -> None:
        """End their requests without reporting it to the front end."""
        for job in jobs:
            del self._jobs[job.request.request_id]
            if job.draft is not None:
                self._draft_jobs.pop(job.draft, None)
        if jobs:
            super().finish_requests(
                [job.request.request_id for job in jobs], RequestStatus.FINISHED_ABORTED
            )

    # ------------------------------------------------------------ memory

    def _preempt_request(self, request: Request, *args: Any, **kwargs: Any) -> None:
        super()._preempt_request(request, *args, **kwargs)
        if self._is_draft(request):
            self.waiting.remove_request(request)
            self.counters["preempted"] += 1

    def _allocate(self, request: Request, *args: Any, **kwargs: Any) -> Any:
        """Allocate blocks for a request. A standard one takes them from requests that do not run
        before vLLM preempts running ones for it."""
        while True:
            blocks = super()._allocate(request, *args, **kwargs)
            if blocks is not None or self._is_draft(request):
                return blocks
            if not self._reclaim(request) and not self.preempt_for_pass(request):
                return blocks

    def count_offloaded_drafts(self) -> None:
        """Called before all KV is offloaded."""
        self.counters["offloaded"] += sum(job.has_kv for job in self._draft_jobs.values())

    def _preempt_one(self, is_candidate: RequestFilter = accept_any) -> bool:
        return self._reclaim(is_candidate=is_candidate) or super()._preempt_one(is_candidate)

    def _reclaim(
        self, spared: Request | None = None, is_candidate: RequestFilter = accept_any
    ) -> bool:
        """Free the KV of the lowest-ranked candidate among drafts that do not run, or else of the
        last candidate among waiting steps. False if none has KV."""
        idle = [
            draft
            for draft, job in self._draft_jobs.items()
            if job.has_kv and not job.is_running and is_candidate(job.request)
        ]
        waiting = [r for r in self.kv_holding_waiting if r is not spared and is_candidate(r)]
        if idle:
            request = self._draft_jobs[max(idle, key=lambda draft: draft.rank)].request
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
