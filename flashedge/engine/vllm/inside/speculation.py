"""Speculation inside vLLM's scheduler: carries out what the draft board plans.

When a beam goes on after a step, its request stays and becomes the draft of child 0. Drafts of
other children get requests of their own, whose prompts end at the boundary. The front end's request
for a drafted step never reaches vLLM: the draft's request goes on with its KV and its row in the
batch, and reports its outputs under the step's name. So one request serves several steps of a path.

A draft that does not run is *paused*, a state that vLLM lacks: its request has the status
PREEMPTED, is in no queue, takes no slot of a batch, and keeps its blocks until a requested step
needs them. Once it is queued again, vLLM resumes it with its KV (`kv_holding_waiting`). A request
may be paused while a token of it is in flight. vLLM calls that token *stale*, delivers it like any
other, and resumes the request only after that.

Ref: arXiv 2509.00195 §4.1, ADR 8. Checked with vLLM 0.32.0.
"""

import copy
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import count
from typing import Any

from vllm.v1.core.sched.output import SchedulerOutput
from vllm.v1.engine import EngineCoreOutput, EngineCoreOutputs
from vllm.v1.engine import FinishReason as VllmFinish
from vllm.v1.metrics.stats import PrefillStats
from vllm.v1.request import Request, RequestStatus

from flashedge.engine.vllm.inside import keys
from flashedge.engine.vllm.inside.keys import read_args
from flashedge.engine.vllm.inside.step_times import limit_sequences
from flashedge.scheduling.speculation.draft_board import DraftBoard
from flashedge.scheduling.speculation.draft_choice import BatchView
from flashedge.scheduling.speculation.drafts import Beam, Continuation, Draft
from flashedge.search.step_rules import StepEnd
from flashedge.types import FinishReason, Sampling

DRAFT_PRIORITY = 1 << 30  # larger than requests have: a smaller quota takes drafts' blocks first
COUNTERS = (
    "kept_steps",  # steps that adopted a draft's tokens
    "kept_tokens",  # the tokens that these adopted
    "drawn_tokens",  # tokens drawn for drafts
    "certain_tokens",  # those of children that the search would certainly request
    "paused",  # drafts that left the batch because others were likelier, or none paid
    "preempted",  # drafts that left it because memory was short
    "dropped_kv",  # drafts and waiting steps that lost their KV to others
    "offloaded",  # drafts that had KV when all KV was offloaded
)


@dataclass(slots=True, eq=False, kw_only=True)
class Label:
    """The front end's name for the step that a request serves, and what the outputs carry."""

    name: str
    adopted: int = 0
    """How many of the step's tokens were those of a draft."""
    stats: PrefillStats | None = None
    """The prefill statistics of an adopted draft, until the step's first output takes them."""

    def put_on(self, output: EngineCoreOutput) -> None:
        output.request_id = self.name
        if self.adopted:  # on every output: the front end joins outputs and keeps the last one's
            output.kv_transfer_params = {
                **(output.kv_transfer_params or {}),
                keys.ADOPTED: self.adopted,
            }
        if self.stats is not None:
            output.prefill_stats, self.stats = self.stats, None


@dataclass(slots=True, eq=False, kw_only=True)
class StepJob:
    """What one of vLLM's requests does now: a requested step (`label`, `beam`), or a draft."""

    request: Request
    boundary: str | None = None
    """Name of the rule that ends the step, or None if the step goes on to the answer's end."""
    start: int = 0
    """Tokens that the request generated before this step."""
    label: Label | None = None
    beam: Beam | None = None
    draft: Draft | None = None
    finish: FinishReason | None = None
    """Why the draft has ended, if it has."""
    is_overdrawn: bool = False
    """Whether tokens in flight come after the draft's end, or after candidates that were dropped
    with it. They are dropped when they arrive."""
    is_cut: bool = False
    """Whether the last engine step drew tokens after the step's end. They are dropped, and so are
    those in flight, which come after them."""

    def serve_step(self, label: Label, beam: Beam) -> None:
        self.label, self.beam = label, beam
        self.draft = self.finish = None

    def serve_draft(self, draft: Draft) -> None:
        self.label, self.beam, self.draft = None, None, draft
        self.start = self.request.num_output_tokens
        after = draft.continuation
        self.set_end(after.granularity.max_tokens, after.boundary)
        self.request.priority = DRAFT_PRIORITY

    def set_end(self, max_tokens: int, boundary: str | None) -> None:
        self.request.max_tokens = self.start + max_tokens
        self.boundary = boundary

    @property
    def has_kv(self) -> bool:
        return self.request.num_computed_tokens > 0

    @property
    def is_running(self) -> bool:
        return self.request.status == RequestStatus.RUNNING


Labels = Mapping[str, tuple[StepJob, Label | None]]
"""The jobs of vLLM's requests and their steps' labels, by request id. A draft has no label."""


class Speculation:
    def __init__(self, scheduler: Any) -> None:
        self._scheduler = scheduler
        self._jobs: dict[str, StepJob] = {}  # by the id of vLLM's request
        self._of_drafts: dict[Draft, StepJob] = {}
        self._requested: dict[str, StepJob] = {}  # by the front end's id of the step
        self._adopted: list[tuple[int, EngineCoreOutput]] = []  # to be sent, each with its client
        self._board = DraftBoard()
        self._draft_ids = count()
        self._most_sequences = limit_sequences(scheduler)
        self._like: dict[str, Request] = {}  # the newest request of each run, for its drafts
        self.counters = dict.fromkeys(COUNTERS, 0)

    def locate_step(self, request: Request) -> tuple[int, str | None]:
        """(tokens generated before the request's current step, name of the rule that ends it)."""
        job = self._jobs.get(request.request_id)
        if job is None:
            return 0, read_args(request.sampling_params).get(keys.BOUNDARY)
        return job.start, job.boundary

    def is_draft(self, request: Request) -> bool:
        job = self._jobs.get(request.request_id)
        return job is not None and job.draft is not None

    # ------------------------------------------------------------ requests arrive and leave

    def adopt(self, request: Request) -> Request | None:
        """Let a draft's request go on in place of a new one. Returns it, or None if none can."""
        args = read_args(request.sampling_params)
        if not args.get("continuation"):
            return None
        continuation = Continuation.from_json(args["continuation"])
        sampling = Sampling(
            temperature=args["temperature"], top_p=args["top_p"], top_k=args["top_k"]
        )
        self._like[continuation.run] = request
        path = tuple(request.prompt_token_ids)
        beam, draft = self._board.add_beam(continuation, path, args["seed"], sampling)
        job = None if draft is None else self._of_drafts.pop(draft, None)
        if job is not None:
            self._adopt(job, request, beam)
            return job.request
        job = StepJob(request=request, boundary=args[keys.BOUNDARY])
        job.serve_step(Label(name=request.request_id), beam)
        self._jobs[request.request_id] = self._requested[request.request_id] = job
        return None

    def _adopt(self, job: StepJob, requested: Request, beam: Beam) -> None:
        assert job.draft is not None, "it was in _of_drafts"
        draft, request = job.draft, job.request
        drawn, prompt_tokens = draft.token_ids, requested.num_prompt_tokens
        params, args = requested.sampling_params, read_args(requested.sampling_params)
        end = StepEnd(
            max_tokens=requested.max_tokens,
            room=self._scheduler.max_model_len - prompt_tokens,
            boundary=self._scheduler.boundaries.rules.get(args[keys.BOUNDARY]),
            stop_ids=frozenset({*params.stop_token_ids, params.eos_token_id}),
        )
        used, finish = end.cut(drawn)
        stats, cached = PrefillStats(), min(request.num_computed_tokens, prompt_tokens)
        stats.set(prompt_tokens, num_local_cached_tokens=cached, num_external_cached_tokens=0)
        label = Label(name=requested.request_id, adopted=used, stats=stats)
        job.serve_step(label, beam)
        self._requested[label.name] = job
        if used:
            self.counters["kept_steps"] += 1
            self.counters["kept_tokens"] += used
            output = make_output(drawn[:used], draft.logprobs[:used], finish)
            label.put_on(output)
            self._adopted.append((requested.client_index, output))
        if finish is None:
            request.priority, request.arrival_time = requested.priority, requested.arrival_time
            read_args(request.sampling_params).update(
                {key: args.get(key) for key in (keys.PROGRAM, keys.EACH_TOKEN)}
            )
            job.set_end(requested.max_tokens, args[keys.BOUNDARY])
            self._promote(request)
            return
        path = (*requested.prompt_token_ids, *drawn[:used])
        if self._finish_step(job, path, finish) and used == len(drawn):
            if job.is_running:
                self._pause(request)
        else:  # nothing follows, or the request has KV of tokens after the step
            self._drop([job])

    def _promote(self, request: Request) -> None:
        if request.status != RequestStatus.RUNNING:
            self._scheduler._enqueue_waiting_request(request)
            return
        running = self._scheduler.running
        running.remove(request)
        drafts = (i for i, other in enumerate(running) if self.is_draft(other))
        running.insert(next(drafts, len(running)), request)

    def cancel(self, request_ids: str | Iterable[str] | None) -> list[str] | None:
        """Cancel the steps that the front end knows by these ids. None cancels all, and returns
        None. Returns the ids of vLLM's requests to end: one that serves another step goes on."""
        if request_ids is None:
            self._board.clear()
            for table in (self._jobs, self._requested, self._of_drafts, self._like):
                table.clear()
            return None
        ending: list[str] = []
        for name in {request_ids} if isinstance(request_ids, str) else set(request_ids):
            if (job := self._requested.pop(name, None)) is not None:
                assert job.beam is not None, "it was requested"
                self._board.cancel_beam(job.beam)
                del self._jobs[job.request.request_id]
                ending.append(job.request.request_id)
            elif name not in self._jobs:
                ending.append(name)
        return ending

    # ------------------------------------------------------------ the end of a step

    def consume_overdrawn(self, request: Request) -> bool:
        """Return whether the request's new tokens come after its draft's end, and so are dropped.
        At most one engine step has such tokens, so the next call returns False."""
        job = self._jobs.get(request.request_id)
        if job is None or not job.is_overdrawn:
            return False
        job.is_overdrawn = False
        return True

    def note_cut(self, request: Request) -> None:
        """Note that tokens after the end of the request's step have been dropped."""
        if (job := self._jobs.get(request.request_id)) is not None:
            job.is_cut = True

    def end_step(self, request: Request) -> bool | None:
        """Pause a request that has stopped, or let it end with its step. Returns whether the
        request ends, or None if it has no job."""
        job = self._jobs.get(request.request_id)
        if job is None:
            return None
        status, finish = request.status, read_finish(request, self._scheduler.max_model_len)
        self._mark_paused(request)
        in_flight = request.num_stale_output_tokens
        drops = job.is_cut or job.draft is not None
        job.is_cut = False
        if job.draft is not None:
            job.finish = finish  # `_route_outputs` reports it to the board
        elif not self._finish_step(job, tuple(request.all_token_ids), finish):
            del self._jobs[request.request_id]
            request.status = status
            return True
        if drops:
            job.is_overdrawn = in_flight > 0
            request.num_computed_tokens -= in_flight
        return False

    def _finish_step(self, job: StepJob, path: tuple[int, ...], finish: FinishReason) -> bool:
        """End a requested step. Returns whether its request serves a draft from now on."""
        assert job.beam is not None, "it was requested"
        assert job.label is not None, "it was requested"
        del self._requested[job.label.name]
        if replay := self._scheduler.passes.windows.replays.get(job.request.request_id):
            # A token in flight comes after those dropped.
            job.is_overdrawn = replay.drop_candidates() and job.request.num_in_flight_tokens > 0
        is_full = len(path) >= self._scheduler.max_model_len
        draft = self._board.finish_beam(job.beam, path, ends_path=finish.ends_path or is_full)
        if draft is None or draft.seed != read_args(job.request.sampling_params)["seed"]:
            return False
        job.serve_draft(draft)
        self._of_drafts[draft] = job
        return True

    # ------------------------------------------------------------ the engine's steps

    def queue_drafts(self) -> tuple[Draft, ...]:
        """Pause and queue drafts before a step is scheduled. Returns those that it queued."""
        if not self._jobs:
            self._board.has_news = False
            return ()
        for draft in self._board.running:
            if not self._of_drafts[draft].is_running:
                self._board.pause(draft)  # memory was short
        scheduler = self._scheduler
        base_s, sequence_s = scheduler.step_times.costs.undrafted
        plan = self._board.plan(
            BatchView(
                running=len(scheduler.running) - len(self._board.running),
                waiting=len(scheduler.waiting) + len(scheduler.kv_holding_waiting),
                max_running=min(scheduler.max_num_active_reqs, self._most_sequences),
                spare_blocks=scheduler.kv_cache_manager.block_pool.get_num_free_blocks(),
                base_s=base_s,
                sequence_s=sequence_s,
            )
        )
        for draft in plan.pause:
            self._pause(self._of_drafts[draft].request)
        for draft in plan.run:
            scheduler._enqueue_waiting_request(self._get_request(draft))
        self.counters["paused"] += len(plan.pause)
        return plan.run

    def unqueue_drafts(self, queued: Iterable[Draft]) -> None:
        """Pause the queued drafts that the step did not take. Called once it is scheduled."""
        scheduler = self._scheduler
        for draft in queued:
            job = self._of_drafts[draft]
            if not job.is_running:  # memory was short, or a token was in flight
                for queue in (scheduler.waiting, scheduler.kv_holding_waiting):
                    if job.request in queue:
                        queue.remove_request(job.request)
                scheduler.deferred_waiting.discard(job.request)
                self._board.pause(draft)

    def _get_request(self, draft: Draft) -> Request:
        job = self._of_drafts.get(draft)
        if job is None:
            name = f"draft-{next(self._draft_ids)}"
            request = make_draft_request(draft, name, self._like[draft.continuation.run])
            self._scheduler.begin_draft(request)
            job = StepJob(request=request)
            self._jobs[name] = self._of_drafts[draft] = job
            job.serve_draft(draft)
        return job.request

    def begin_update(self, scheduled: SchedulerOutput) -> Labels:
        """Return what the requests of an engine step serve, before vLLM handles its outputs."""
        found = (self._jobs.get(name) for name in scheduled.num_scheduled_tokens)
        return {job.request.request_id: (job, job.label) for job in found if job}

    def end_update(self, outputs: dict[int, EngineCoreOutputs], labels: Labels) -> None:
        """Name the outputs for the front end, drop those of drafts, add those of adopted ones."""
        if labels:
            for of_client in outputs.values():
                of_client.outputs = list(self._route_outputs(of_client.outputs, labels))
        adopted, self._adopted = self._adopted, []
        for client, output in reversed(adopted):
            outputs.setdefault(client, EngineCoreOutputs()).outputs.insert(0, output)

    def _route_outputs(
        self, outputs: Iterable[EngineCoreOutput], labels: Labels
    ) -> Iterator[EngineCoreOutput]:
        """Label and yield the outputs of requests. Record those of drafts on the board."""
        for output in outputs:
            job, label = labels.get(output.request_id, (None, None))
            if job is not None:
                job.request.stop_reason = None  # the request may go on with another step
            if label is not None:
                label.put_on(output)
            if job is None or label is not None:
                yield output
                continue
            assert job.draft is not None, "it has no label"
            last = len(output.new_token_ids) - 1  # a deterministic request gets several at once
            for at, token in enumerate(output.new_token_ids):
                logprob = float(output.new_logprobs.logprobs[at][0])
                self._board.append(job.draft, token, logprob, job.finish if at == last else None)
                self.counters["drawn_tokens"] += 1
                self.counters["certain_tokens"] += job.draft.is_certain

    @property
    def has_work(self) -> bool:
        """Whether a step is due though no request runs or waits."""
        return bool(self._adopted) or self._board.has_news

    def find_name(self, request_id: str) -> str | None:
        """The front end's name for one of vLLM's requests, None for a draft."""
        job = self._jobs.get(request_id)
        if job is None:
            return request_id
        return None if job.label is None else job.label.name

    # ------------------------------------------------------------ paused drafts and their memory

    def _pause(self, request: Request) -> None:
        self._scheduler.running.remove(request)
        self._mark_paused(request)

    def _mark_paused(self, request: Request) -> None:
        request.status = RequestStatus.PREEMPTED
        request.num_stale_output_tokens = request.num_in_flight_tokens
        request.drop_stale_output = False
        request.num_output_placeholders = 0
        self._scheduler.send_whole(request)

    def unqueue_preempted(self, request: Request) -> None:
        """Take a draft that vLLM preempted out of its queue: the board plans when it runs again."""
        if self.is_draft(request):
            self._scheduler.waiting.remove_request(request)
            self.counters["preempted"] += 1

    def count_offloaded(self) -> None:
        self.counters["offloaded"] += sum(job.has_kv for job in self._of_drafts.values())

    def reclaim(
        self,
        is_candidate: Callable[[Request], bool] = lambda request: True,
        *,
        spared: Request | None = None,
    ) -> bool:
        """Free the KV of one candidate: the idle draft that would run last, or else the last
        waiting step. Returns False if none has KV. spared: a request that is not to lose its KV."""
        scheduler = self._scheduler
        idle = [
            (draft.rank, job.request)
            for draft, job in self._of_drafts.items()
            if job.has_kv and not job.is_running and is_candidate(job.request)
        ]
        waiting = [r for r in scheduler.kv_holding_waiting if r is not spared and is_candidate(r)]
        if not (idle or waiting):
            return False
        request = max(idle, key=lambda found: found[0])[1] if idle else waiting[-1]
        scheduler._free_request_blocks(request)
        request.num_computed_tokens = 0
        if request in scheduler.kv_holding_waiting:
            scheduler.kv_holding_waiting.remove_request(request)
            if not scheduler.passes.displace(request):
                scheduler.waiting.add_request(request)
        self.counters["dropped_kv"] += 1
        return True

    # ------------------------------------------------------------ engine.base.Speculator

    def list_complete(self, run: str) -> list[tuple[int, list[int]]]:
        """(seed, token ids) of the run's complete drafts."""
        return [(draft.seed, draft.token_ids) for draft in self._board.list_complete(run)]

    def drop_unused(
        self, run: str, levels: Collection[int], seeds: Collection[int]
    ) -> tuple[int, int]:
        """See `engine.base`. Returns `DraftBoard.count_drawn`."""
        self._drop_drafts(self._board.drop_unused(run, frozenset(levels), frozenset(seeds)))
        return self._board.count_drawn(run)

    def commit(self, run: str, level: int, children: Iterable[tuple[int, int]]) -> None:
        self._board.commit(run, level, dict(children))

    def end_run(self, run: str) -> tuple[int, int]:
        drawn = self._board.count_drawn(run)
        self._like.pop(run, None)
        self._drop_drafts(self._board.end_run(run))
        return drawn

    def _drop_drafts(self, drafts: Iterable[Draft]) -> None:
        self._drop([self._of_drafts[draft] for draft in drafts if draft in self._of_drafts])

    def _drop(self, jobs: Collection[StepJob]) -> None:
        for job in jobs:
            del self._jobs[job.request.request_id]
            if job.draft is not None:
                self._of_drafts.pop(job.draft, None)
        if jobs:
            self._scheduler.abort([job.request.request_id for job in jobs])


# ---------------------------------------------------------------- requests and outputs of vLLM


def read_finish(request: Request, max_model_len: int) -> FinishReason:
    if request.status == RequestStatus.FINISHED_STOPPED:
        return FinishReason.BOUNDARY if request.stop_reason == keys.BOUNDARY else FinishReason.STOP
    return FinishReason.LENGTH if request.num_tokens >= max_model_len else FinishReason.STEP_LIMIT


def make_draft_request(draft: Draft, name: str, like: Request) -> Request:
    """Make a request that draws a draft, with the noise of the child's own request and otherwise
    the parameters of `like`, another one of the run. `StepJob.serve_draft` sets its end and
    priority."""
    params, args = copy.copy(like.sampling_params), read_args(like.sampling_params)
    kept = (keys.PROGRAM, keys.CLIENT, keys.PATH_FROM, keys.TOKEN_DRAFTS)
    params.extra_args = {
        keys.ARGS_KEY: {
            **{key: args.get(key) for key in kept},
            "seed": draft.seed,
            "temperature": draft.sampling.temperature,
            "top_k": draft.sampling.top_k,
            "top_p": draft.sampling.top_p,
            keys.LOGPROBS: True,
            keys.DETERMINISTIC: draft.continuation.deterministic,
        }
    }
    return Request(
        request_id=name,
        prompt_token_ids=list(draft.path),
        sampling_params=params,
        pooling_params=None,
        client_index=like.client_index,
        arrival_time=time.time(),
        block_hasher=like._block_hasher,
    )


def make_output(
    token_ids: Sequence[int], logprobs: Sequence[float], finish: FinishReason | None
) -> EngineCoreOutput:
    """Make an output of an adopted draft's tokens. finish: None if the step goes on."""
    has_stopped = finish in (FinishReason.BOUNDARY, FinishReason.STOP)
    reason = VllmFinish.STOP if has_stopped else VllmFinish.LENGTH
    return EngineCoreOutput(
        request_id="",
        new_token_ids=list(token_ids),
        kv_transfer_params={keys.LOGPROBS: list(logprobs)},
        finish_reason=reason if finish else None,
        stop_reason=keys.BOUNDARY if finish is FinishReason.BOUNDARY else None,
    )
