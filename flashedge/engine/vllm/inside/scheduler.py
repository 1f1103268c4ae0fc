"""vLLM's scheduler with what FlashEdge needs inside it.

vLLM calls only `EdgeScheduler`. Its methods forward each call to the features that it concerns, and
show in which order they act:

    programs     in which order waiting requests run            below
    drafts       what is drafted, and which requests adopt it   speculation
    step_times   how long steps take, for the drafts            step_times
    token_drafts which tokens of a request are drafted          token_drafts
    card_drafts  the same where the model runner drafts them    card_drafts
    passes       deterministic requests                         determinism.passes, .windows
    boundaries   where steps end                                below
    kv           the quota of KV blocks                         kv.quota
    joined       which outputs the daemon gets now              outputs
    steps        what is in flight, for the daemon              step_record

Ref: arXiv 2509.00195 §4.1, arXiv 2601.17768 §4, arXiv 2412.20993 App. D.3.1; ADR 18. Checked with
vLLM 0.32.0.
"""

import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any

from vllm.v1.core.sched.async_scheduler import AsyncScheduler
from vllm.v1.core.sched.output import SchedulerOutput
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.engine import EngineCoreOutputs
from vllm.v1.outputs import ModelRunnerOutput
from vllm.v1.request import Request, RequestStatus

from flashedge.engine.vllm.inside.card_drafts import CardDrafts
from flashedge.engine.vllm.inside.determinism.passes import Passes
from flashedge.engine.vllm.inside.determinism.windows import find_pass
from flashedge.engine.vllm.inside.keys import (
    BOUNDARIES,
    BOUNDARY,
    ENTROPY_RULE,
    PROGRAM,
    read_args,
    read_config,
)
from flashedge.engine.vllm.inside.kv.quota import KvQuota
from flashedge.engine.vllm.inside.outputs import JoinedTokens, find_entropy
from flashedge.engine.vllm.inside.patches import ProcessKind, apply_patches
from flashedge.engine.vllm.inside.speculation import Speculation
from flashedge.engine.vllm.inside.step_record import StepsInFlight
from flashedge.engine.vllm.inside.step_times import StepTimes
from flashedge.engine.vllm.inside.token_drafts import TokenDrafts
from flashedge.search.step_rules import BoundaryRule, EntropyRule

Append = Callable[[list[int]], tuple[list[int], bool]]
"""Returns the tokens that were appended, and whether the request has ended."""

# VLLM_PLUGINS in the user's shell may keep vLLM from calling our plugin.
apply_patches(ProcessKind.CORE)


class EdgeScheduler(AsyncScheduler):
    """Serves synchronous engines too, which never have more than one step in flight."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.programs = ProgramOrder()
        self.drafts = Speculation(self)
        self.boundaries = StepBoundaries(self, self.drafts.locate_step)
        self.kv = KvQuota(self, self.drafts.reclaim)
        self.passes = Passes(self, self.boundaries.ends_step)
        self.step_times = StepTimes()
        self.token_drafts = TokenDrafts(self, self.drafts.locate_step, self.boundaries.rules)
        self.card_drafts = CardDrafts(self)
        self.joined = JoinedTokens()
        self.steps = StepsInFlight(self.drafts.find_name)
        self._allocate_in_vllm = self.kv_cache_manager.allocate_slots
        self.kv_cache_manager.allocate_slots = self._allocate  # the one place where requests get KV
        _die_with_daemon()

    # ------------------------------------------------------------ requests arrive and leave

    def add_request(self, request: Request) -> None:
        with self.steps.blame(request.request_id):
            adopted = self.drafts.adopt(request)
            self._draft_tokens(request, adopted or request)
            if adopted is None:
                self.passes.windows.begin(request)
                super().add_request(request)

    def begin_draft(self, request: Request) -> None:
        """Take a request that no front end sent."""
        self._draft_tokens(request, request)
        self.requests[request.request_id] = request
        self.passes.windows.begin(request)

    def _draft_tokens(self, requested: Request, request: Request) -> None:
        """Draft the tokens of a request. request: vLLM's, which may be a draft that it adopted."""
        self.token_drafts.add_request(requested, request)
        self.card_drafts.add_request(requested, request)

    def finish_requests(
        self, request_ids: str | Iterable[str] | None, finished_status: RequestStatus
    ) -> list[Request]:
        self.joined.forget(request_ids)
        own = self.drafts.cancel(request_ids)
        return super().finish_requests(own, finished_status)

    def abort(self, request_ids: list[str]) -> None:
        """End requests without reporting it to the front end."""
        super().finish_requests(request_ids, RequestStatus.FINISHED_ABORTED)

    def has_requests(self) -> bool:
        return super().has_requests() or self.drafts.has_work

    # ------------------------------------------------------------ a step

    def schedule(self, *args: Any, **kwargs: Any) -> SchedulerOutput:
        stock = partial(super().schedule, *args, **kwargs)
        self.step_times.begin()
        try:
            self.programs.sort(self.waiting)
            queued = self.drafts.queue_drafts()
            self.token_drafts.propose()
            self.card_drafts.drop_placeholders()
            output = self.passes.schedule(stock)
            self.drafts.unqueue_drafts(queued)
        except Exception:
            self.steps.blame_any()
            raise
        if output.num_scheduled_tokens:
            replay_pass = find_pass(output)
            tokens = replay_pass.rows if replay_pass else output.total_num_scheduled_tokens
            self.steps.begin(output.num_scheduled_tokens, tokens)
        return output

    def _update_after_schedule(self, output: SchedulerOutput) -> None:
        self.step_times.complete_output(output)
        self.passes.complete_output(output)
        self.card_drafts.complete_output(output)
        super()._update_after_schedule(output)

    # ------------------------------------------------------------ the end of a step

    def update_from_output(
        self, scheduled: SchedulerOutput, ran: ModelRunnerOutput
    ) -> dict[int, EngineCoreOutputs]:
        self.joined.begin_update(scheduled, self.requests, self.drafts.find_name)
        self.boundaries.begin_update(ran)
        self.card_drafts.begin_update(scheduled, ran)
        labels = self.drafts.begin_update(scheduled)
        replays = self.passes.begin_update(scheduled, ran)
        outputs: dict[int, EngineCoreOutputs] = super().update_from_output(scheduled, ran)
        self.passes.end_update(scheduled, replays)
        self.token_drafts.end_update(scheduled)
        self.step_times.end(scheduled)
        self.drafts.end_update(outputs, labels)
        self.joined.end_update(outputs)
        if scheduled.num_scheduled_tokens:
            self.steps.end()
        return outputs

    def _update_request_with_output(
        self, request: Request, new_token_ids: list[int], is_stale: bool = False
    ) -> tuple[list[int], bool]:
        if self.drafts.consume_overdrawn(request):
            return [], False
        if self.passes.draws_candidates(request):
            self.passes.keep_candidates(request, new_token_ids, is_stale=is_stale)
            return [], False
        append = partial(super()._update_request_with_output, request, is_stale=is_stale)
        if request.request_id in self.passes.windows.replays:
            append = partial(self._append, request)
        drawn = len(new_token_ids)
        appended, is_over = self.boundaries.append(request, new_token_ids, append)
        if request in self.card_drafts:
            self._take_back(request, drawn - len(appended), is_stale=is_stale)
        return appended, is_over

    def _take_back(self, request: Request, cut: int, *, is_stale: bool) -> None:
        """Count no KV of tokens that are dropped. vLLM lets a request with such tokens end, and
        takes no wrong drafts back where it calls the tokens stale."""
        if cut:
            request.num_computed_tokens -= cut
            self.drafts.note_cut(request)
            self.card_drafts.counters["cut_steps"] += 1
        if is_stale:
            known = request.num_tokens - 1
            request.num_computed_tokens = min(request.num_computed_tokens, known)

    def _append(self, request: Request, token_ids: list[int]) -> tuple[list[int], bool]:
        """Append tokens that a pass has drawn. The asynchronous scheduler would put their blocks
        into the prefix cache before their window is verified."""
        appended, is_over = Scheduler._update_request_with_output(self, request, token_ids)
        self.passes.commit(request)
        return appended, is_over

    def _handle_stopped_request(self, request: Request) -> bool:
        is_over = self.drafts.end_step(request)
        return super()._handle_stopped_request(request) if is_over is None else is_over

    # ------------------------------------------------------------ memory

    def _allocate(self, request: Request, *args: Any, **kwargs: Any) -> Any:
        """Let a request take blocks from drafts, waiting steps and requests that a pass hides,
        before vLLM preempts running ones for it. A draft takes none."""
        kwargs |= self.passes.windows.choose_allocation(request)
        while True:
            blocks = self._allocate_in_vllm(request, *args, **kwargs)
            if blocks is not None or self.drafts.is_draft(request):
                return blocks
            if not (self.drafts.reclaim(spared=request) or self.passes.preempt_for(request)):
                return blocks

    def _get_local_prefix_cache_hit(self, request: Request) -> Any:
        hit = super()._get_local_prefix_cache_hit(request)
        return self.passes.windows.cut_prefix(request, hit)

    def _preempt_request(self, request: Request, *args: Any, **kwargs: Any) -> None:
        super()._preempt_request(request, *args, **kwargs)
        self.kv.preempted += 1
        self.send_whole(request)
        self.drafts.unqueue_preempted(request)

    def send_whole(self, request: Request) -> None:
        """Let the model runner get all tokens of a request again, once it is back in the batch.

        vLLM takes requests out of the batch while it schedules a step. We do it between two steps:
        the first runner would not notice that, and the second would keep the request's slot.
        """
        self.prev_step_scheduled_req_ids.discard(request.request_id)
        if self.use_v2_model_runner:
            self.reset_preempted_req_ids.add(request.request_id)

    def _free_request(self, request: Request, *args: Any, **kwargs: Any) -> Any:
        self.passes.windows.replays.pop(request.request_id, None)
        return super()._free_request(request, *args, **kwargs)

    def _free_request_blocks(self, request: Request) -> None:
        if replay := self.passes.windows.replays.get(request.request_id):
            replay.lose_blocks()
        super()._free_request_blocks(request)

    def view(self) -> dict[str, Any]:
        drafts = self.card_drafts if self.num_spec_tokens else self.token_drafts
        token_drafts = self.step_times.counters | drafts.counters
        replays = dict(self.passes.counters)
        return {**self.kv.view(), "replays": replays, "token_drafts": token_drafts}


class StepBoundaries:
    """Finds where the steps of paths end, inside the engine.

    The front end would find an end one or more engine steps later, and places in the batch would
    stay empty meanwhile. An asynchronous engine has begun its next step already: the token that it
    draws after the boundary is the first of a draft, or is dropped. The entropy rule ends a step
    before an uncertain token. That token has no KV yet and is not appended.
    """

    def __init__(
        self, scheduler: Any, locate_step: Callable[[Request], tuple[int, str | None]]
    ) -> None:
        config = read_config(scheduler.vllm_config)
        self.rules: Mapping[str | None, BoundaryRule] = {
            name: BoundaryRule.from_json(rule) for name, rule in config.get(BOUNDARIES, {}).items()
        }
        self._locate_step = locate_step
        self._ran: ModelRunnerOutput | None = None

    def begin_update(self, ran: ModelRunnerOutput) -> None:
        self._ran = ran

    def append(
        self, request: Request, token_ids: list[int], append: Append
    ) -> tuple[list[int], bool]:
        """Append tokens up to the end of the step. Returns what `append` returns."""
        start, name = self._locate_step(request)
        rule, asked = self.rules.get(name), read_args(request.sampling_params).get(ENTROPY_RULE)
        entropy_rule = EntropyRule(**asked) if asked else None
        if rule is None and entropy_rule is None:
            return append(token_ids)
        output = request.output_token_ids
        for at, token in enumerate(token_ids):
            count = len(output) - start
            if entropy_rule and entropy_rule.ends_before(self._find_entropy(request, at), count):
                _end_at_boundary(request)
                return token_ids[:at], True
            previous = output[-1] if count else None
            _, is_over = append([token])
            if rule is not None and rule.ends_step(previous, token):
                _end_at_boundary(request)
                is_over = True
            if is_over:
                return token_ids[: at + 1], True
        return token_ids, False

    def ends_step(self, request: Request) -> bool:
        """Whether the last token of a request would end its step. Ignores the entropy rule."""
        start, name = self._locate_step(request)
        rule, tokens = self.rules.get(name), request.output_token_ids
        previous = tokens[-2] if request.num_output_tokens - start > 1 else None
        return rule is not None and rule.ends_step(previous, tokens[-1])

    def _find_entropy(self, request: Request, at: int) -> float:
        assert self._ran is not None, "tokens come with an engine step"
        assert self._ran.logprobs is not None, "the request asks for them"
        index = self._ran.req_id_to_index[request.request_id]
        return find_entropy(self._ran.logprobs.slice_request(index, at + 1).logprobs[at])


def _end_at_boundary(request: Request) -> None:
    request.status = RequestStatus.FINISHED_STOPPED
    request.stop_reason = BOUNDARY


class ProgramOrder:
    """Sorts waiting requests by their programs, whose order the daemon sends between two steps.

    All requests of a program carry its key and keep the order of their arrival. Requests of an
    unknown program go last. Running requests are not interrupted, and no token depends on the
    order. The prefix cache evicts what was used longest ago, whatever the order: an agent may come
    back with the same history after its last request is over.
    """

    def __init__(self) -> None:
        self.reordered = 0
        """How often the waiting requests had to be put into another order."""
        self._places: Mapping[str | None, int] = {}

    def rank(self, keys: Sequence[str]) -> None:
        """Set the order of programs. keys: that of the first program first."""
        self._places = {key: place for place, key in enumerate(keys)}

    def sort(self, waiting: Any) -> None:
        """Sort the queue. Between two steps no draft is in it that could overtake a request."""
        if not self._places:
            return

        def find_place(request: Any) -> int:
            args = read_args(request.sampling_params or request.pooling_params)
            return self._places.get(args.get(PROGRAM), len(self._places))

        before = list(waiting)
        if (in_order := sorted(before, key=find_place)) != before:
            waiting.clear()
            waiting.extend(in_order)
            self.reordered += 1


def _die_with_daemon() -> None:
    """End this engine process when the daemon is killed: multiprocessing gives every child a pipe
    that only the daemon holds open. (PR_SET_PDEATHSIG would watch the fork server.)"""
    daemon = multiprocessing.parent_process()
    if daemon is None:
        return  # in the daemon's own process (tests)

    def watch() -> None:
        daemon.join()
        os.kill(os.getpid(), signal.SIGKILL)

    threading.Thread(target=watch, name="die-with-daemon", daemon=True).start()
