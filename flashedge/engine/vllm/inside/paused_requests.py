"""Paused drafts: requests that keep their KV without running or waiting.

vLLM has no such state. A paused request has the status PREEMPTED, is in no queue, and keeps its
blocks. Put back in line, it is one of those that vLLM resumes with their KV (`kv_holding_waiting`).
It takes no slot of a batch, and loses its blocks before a standard request has to.

An asynchronous engine may be computing a token of a request that is paused. vLLM has a state for
that, too: the token is *stale*. It is delivered like any other, and the request does not go on
before.

Checked with vLLM 0.32.0.
"""

from __future__ import annotations

from typing import Any

from vllm.v1.request import Request, RequestStatus

from flashedge.engine.vllm.inside.draft_requests import StepJob, read_noise_args
from flashedge.engine.vllm.inside.keys import BOUNDARY
from flashedge.engine.vllm.inside.kv.quota import RequestFilter, accept_any
from flashedge.scheduling.speculation.drafts import Draft

COUNTERS = (
    "kept_steps",  # steps that adopted a draft's tokens
    "kept_tokens",  # the tokens that these adopted
    "drawn_tokens",  # tokens drawn for drafts
    "paused",  # drafts taken out of the batch because their slot was needed
    "preempted",  # drafts taken out of the batch because memory was short
    "dropped_kv",  # drafts and waiting steps that lost their KV to others
    "offloaded",  # drafts that had KV when all KV was offloaded
)


class DraftJobs:
    """Knows which of a scheduler's requests are drafts, and takes memory from them first."""

    def __init__(self, scheduler: Any) -> None:
        self._scheduler = scheduler
        self.jobs: dict[str, StepJob] = {}
        """By the id of vLLM's request."""
        self.of_drafts: dict[Draft, StepJob] = {}
        self.counters = dict.fromkeys(COUNTERS, 0)
        """Since the start of the process."""

    def locate_step(self, request: Request) -> tuple[int, str | None]:
        """(tokens generated before the request's current step, name of the rule that ends it)."""
        job = self.jobs.get(request.request_id)
        if job is None:
            return 0, read_noise_args(request).get(BOUNDARY)
        return job.start, job.boundary

    def is_draft(self, request: Request) -> bool:
        job = self.jobs.get(request.request_id)
        return job is not None and job.draft is not None

    def pause(self, request: Request) -> None:
        """Take a draft's request out of the batch. It keeps its blocks."""
        self._scheduler.running.remove(request)
        self.mark_paused(request)

    def mark_paused(self, request: Request) -> None:
        """Give a request that leaves the batch the state of a paused one."""
        request.status = RequestStatus.PREEMPTED
        request.num_stale_output_tokens = request.num_in_flight_tokens
        request.drop_stale_output = False
        request.num_output_placeholders = 0
        self._scheduler.send_whole(request)

    def unqueue(self, request: Request) -> None:
        for queue in (self._scheduler.waiting, self._scheduler.kv_holding_waiting):
            if request in queue:
                queue.remove_request(request)
        self._scheduler.deferred_waiting.discard(request)

    # ------------------------------------------------------------ memory

    def note_preempted(self, request: Request) -> None:
        """A preempted draft does not wait."""
        if self.is_draft(request):
            self._scheduler.waiting.remove_request(request)
            self.counters["preempted"] += 1

    def count_offloaded(self) -> None:
        """Called before all KV is offloaded."""
        self.counters["offloaded"] += sum(job.has_kv for job in self.of_drafts.values())

    def reclaim(
        self, is_candidate: RequestFilter = accept_any, *, spared: Request | None = None
    ) -> bool:
        """Free the KV of the lowest-ranked candidate among drafts that do not run, or else of the
        last candidate among waiting steps. False if none has KV."""
        scheduler = self._scheduler
        idle = [
            draft
            for draft, job in self.of_drafts.items()
            if job.has_kv and not job.is_running and is_candidate(job.request)
        ]
        waiting = [r for r in scheduler.kv_holding_waiting if r is not spared and is_candidate(r)]
        if idle:
            request = self.of_drafts[max(idle, key=lambda draft: draft.rank)].request
        elif waiting:
            request = waiting[-1]
        else:
            return False
        scheduler._free_request_blocks(request)
        request.num_computed_tokens = 0
        if request in scheduler.kv_holding_waiting:
            scheduler.kv_holding_waiting.remove_request(request)
            if not scheduler.passes.displace(request):
                scheduler.waiting.add_request(request)
        self.counters["dropped_kv"] += 1
        return True
