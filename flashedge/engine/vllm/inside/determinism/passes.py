"""Deterministic requests inside vLLM's scheduler: decode, verify, roll back.

A deterministic request decodes in shared steps like any other, but its tokens stay here as
candidates. When its window is full, or a candidate would end it, a *verify pass* computes the
window again in a fixed shape (`PassShape`), overwrites its KV, and draws the tokens. Candidates
up to the first wrong one are right, and so is the token that the pass drew in its place. The
candidates after it are dropped. The daemon sees verified tokens only.

*Prefill passes* compute the windows of a prompt except the last. The first verify pass computes
that one. Without a deterministic request every step is vLLM's own.

An asynchronous engine schedules a step while the one before is computed, shared steps with
deterministic requests too. A pass takes candidates back, and these can't be in flight. So once a
pass is due, the steps in flight end first, and nothing is scheduled until the pass has ended. The
model runner copies the tokens of a pass to the host before it returns.

Ref: arXiv 2601.17768 §4; ADR 20, 36. Checked with vLLM 0.32.0.
"""

import time
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from vllm.v1.core.sched.interface import PauseState
from vllm.v1.core.sched.output import SchedulerOutput
from vllm.v1.core.sched.request_queue import create_request_queue
from vllm.v1.engine.core import EngineCore
from vllm.v1.outputs import ModelRunnerOutput
from vllm.v1.request import Request, RequestStatus

from flashedge.engine.vllm.inside.determinism.windows import Replay, ReplayPass, Windows, find_pass
from flashedge.scheduling.determinism import MAX_WAIT, BatchState, StepKind, choose_step

_step_with_batch_queue = EngineCore.step_with_batch_queue
COUNTERS = (
    "stock_steps",  # vLLM's own steps while no deterministic request was open, or all were paused
    "shared_steps",  # vLLM's own steps while one was open
    "prefill_passes",
    "verify_passes",
    "verified_windows",  # windows that verify passes computed
    "verified_tokens",  # tokens that verify passes drew
    "rollbacks",  # windows with a wrong candidate
    "recomputed_tokens",  # candidates that were dropped
    "pass_us",  # microseconds from the scheduling of a pass to its outputs, over all passes
)

Schedule = Callable[[], SchedulerOutput]
"""vLLM's own `schedule`, with its arguments bound."""


@dataclass(slots=True, kw_only=True)
class Due:
    """The scheduler's requests by what they need next."""

    prefill: tuple[Replay, int] | None = None
    """The first request with prompt to compute, and how many of its tokens have KV already."""
    scoring: list[Replay] = field(default_factory=list)
    """A verifier's requests, whose paths are to be computed. They draw no tokens."""
    ready: list[Replay] = field(default_factory=list)
    """Requests whose window can be verified."""
    expects_window: bool = False
    """See `BatchState`."""
    shared: list[Request] = field(default_factory=list)
    """Requests that a shared step may take."""
    has_others: bool = False
    """Whether some of these are not deterministic."""


class Passes:
    """Chooses the kind of each step, and does what passes need before and after vLLM's own part."""

    def __init__(self, scheduler: Any, ends_step: Callable[[Request], bool]) -> None:
        self._scheduler, self._ends_step = scheduler, ends_step
        self.windows = Windows(scheduler)
        self.counters = dict.fromkeys(COUNTERS, 0)
        self._last_pass = StepKind.VERIFY
        self.in_flight = 0
        """How many steps are in flight before one is scheduled."""
        self._is_due = False
        """Whether a pass waits for these, of drafts that are queued only while one is scheduled."""
        self._full: tuple[int, frozenset[Request]] | None = None
        """After a pass that found no memory: the free blocks, and the running requests."""
        self._hidden: list[Request] = []
        """The running requests that a pass hides while it is scheduled."""
        self._displaced: list[Request] = []
        """Requests that lost their blocks in this step. They wait again once it is scheduled."""
        self._is_scheduling = False
        self._candidates: dict[str, int] = {}
        """How many candidates each request of the verify pass had, by its id."""
        self._pass_began_s = 0.0
        self._is_crowded = False
        """Whether there was no memory for the requests of the last pass together."""

    @property
    def is_open(self) -> bool:
        """Whether there is a deterministic request."""
        return bool(self.windows.replays)

    @property
    def is_pass(self) -> bool:
        """Whether the last scheduled step is a pass."""
        return self.is_open and self.windows.step is not StepKind.SHARED

    def schedule(self, stock: Schedule) -> SchedulerOutput:
        """Choose the kind of the next step, and let vLLM schedule it for the requests due."""
        windows = self.windows
        if not self.is_open or self._scheduler.pause_state is PauseState.PAUSED_ALL:
            self.counters["stock_steps"] += 1
            windows.step = StepKind.SHARED
            return stock()
        due, kind = self._choose()
        self._is_due = kind is not StepKind.SHARED and self.in_flight > 0
        windows.step = StepKind.SHARED if self._is_due else kind
        if windows.step is StepKind.SHARED:
            self.counters["shared_steps"] += 1
            for replay in due.ready:
                replay.waited += 1
            output = self._schedule_some(stock, due.shared)
            if not (output.total_num_scheduled_tokens or self.in_flight):
                self._full = None  # nothing runs that could free blocks
            return output
        self._last_pass = windows.step
        if windows.step is StepKind.VERIFY:
            return self._schedule_verify(stock, due)
        if due.scoring:
            return self._schedule_scores(stock, due)
        assert due.prefill is not None, "it was chosen"
        replay, computed = due.prefill
        tokens = windows.shape.end_chunk(computed, replay.verified) - computed
        return self._schedule_pass(stock, [replay.request], tokens)

    def must_wait(self) -> bool:
        """Whether steps are in flight which have to end first: a pass is due, or nothing is."""
        if not (self.in_flight and self.is_open):
            return False
        due, kind = self._choose()
        return self._is_due or kind is not StepKind.SHARED or not due.shared

    def _choose(self) -> tuple[Due, StepKind]:
        """Return what is due, and the kind of the next step if none is in flight."""
        self._free_full_windows()
        due = self._find_due()
        state = BatchState(
            can_prefill=due.prefill is not None or bool(due.scoring),
            ready=len(due.ready),
            waited=max((replay.waited for replay in due.ready), default=0),
            expects_window=due.expects_window,
            can_share=bool(due.shared),
            has_others=due.has_others,
            last=self.windows.step,
            last_pass=self._last_pass,
        )
        return due, choose_step(state, self.windows.shape.group)

    def _admits(self) -> bool:
        """Whether a pass may take waiting requests. After one that found no memory, only once
        blocks have come free or a request that ran has left."""
        if self._full is not None:
            (free, ran), scheduler = self._full, self._scheduler
            has_more = scheduler.kv_cache_manager.block_pool.get_num_free_blocks() > free
            if has_more or not ran.issubset(scheduler.running):
                self._full = None
        return self._full is None

    def _find_due(self) -> Due:
        """Group all requests, except waiting deterministic ones that no pass may take now."""
        scheduler, windows, due = self._scheduler, self.windows, Due()
        admits = self._admits()
        for request in (*scheduler.running, *scheduler.kv_holding_waiting):
            self._group(due, request)
        places = scheduler.max_num_active_reqs - len(scheduler.running)
        places -= len(scheduler.kv_holding_waiting)
        for request in scheduler.waiting:
            if request.request_id in windows.replays:
                is_full = len(due.ready) + len(due.scoring) >= windows.shape.group
                if places <= 0 or is_full or not admits:
                    continue
                places -= 1
            self._group(due, request)
        return due

    def _group(self, due: Due, request: Request) -> None:
        windows = self.windows
        replay = windows.replays.get(request.request_id)
        if replay is None:
            due.shared.append(request)
            due.has_others = True
        elif request.pooling_params is not None:
            due.scoring.append(replay)
        elif windows.is_ready(replay):
            due.ready.append(replay)
        elif replay.is_current:
            known = request.num_tokens + request.num_output_placeholders
            missing = windows.end_window(replay) - known
            due.expects_window = due.expects_window or missing <= MAX_WAIT
            if missing > 0:  # else a token in flight fills the window
                due.shared.append(request)
        else:
            computed = request.num_computed_tokens
            if request.status is not RequestStatus.RUNNING:  # it gets these from the cache
                computed = int(self._scheduler._get_local_prefix_cache_hit(request)[1])
            if computed == windows.shape.find_window(replay.verified):
                due.ready.append(replay)
            elif due.prefill is None:
                due.prefill = replay, computed

    def _free_full_windows(self) -> None:
        """Free the KV of waiting requests whose window is to be verified. vLLM would resume them
        after the window. Now they resume before it: earlier windows come from the prefix cache."""
        scheduler = self._scheduler
        for request in list(scheduler.kv_holding_waiting):
            replay = self.windows.replays.get(request.request_id)
            if replay is not None and self.windows.is_ready(replay):
                scheduler._free_request_blocks(request)
                request.num_computed_tokens = 0
                scheduler.kv_holding_waiting.remove_request(request)
                scheduler.waiting.prepend_request(request)

    def _schedule_scores(self, stock: Schedule, due: Due) -> SchedulerOutput:
        requests = [replay.request for replay in due.scoring[: self._count_group()]]
        tokens = self.windows.shape.count_chunk(len(requests))
        rows = tokens * len(requests)
        with limit_chunks(self._scheduler, tokens):
            return self._schedule_pass(stock, requests, rows)

    def _schedule_verify(self, stock: Schedule, due: Due) -> SchedulerOutput:
        self._candidates = {}
        oldest = sorted(due.ready, key=self._rank)[: self._count_group()]
        for replay in oldest:
            self._candidates[replay.request.request_id] = len(replay.candidates)
            if replay.request.status is RequestStatus.RUNNING:
                replay.request.spec_token_ids = replay.guess(self.windows.end_window(replay))
                replay.request.num_computed_tokens = self.windows.shape.find_window(replay.verified)
                replay.is_current = False
        requests = [replay.request for replay in oldest]
        output = self._schedule_pass(stock, requests, self.windows.shape.rows)
        for replay in oldest:
            request = replay.request
            if request.request_id not in output.num_scheduled_tokens:  # there was no memory for it
                replay.saved = replay.saved or list(request.spec_token_ids)
                request.spec_token_ids = []
        return output

    def _rank(self, replay: Replay) -> tuple[bool, int]:
        """Return the sort key of a ready window. After a pass that found no memory, windows with
        blocks go first, since the others would find none again."""
        has_blocks = replay.request.status is RequestStatus.RUNNING
        return self._is_crowded and not has_blocks, -replay.waited

    def _count_group(self) -> int:
        """Return how many requests the next pass may have. The cached windows that are pinned for
        several may leave no memory for any of them: then one goes alone."""
        return 1 if self._is_crowded else self.windows.shape.group

    def _schedule_pass(
        self, stock: Schedule, requests: list[Request], tokens: int
    ) -> SchedulerOutput:
        assert not any(r.num_in_flight_tokens for r in requests), "see `step_with_batch_queue`"
        with self.windows.pin_prefixes(requests):
            output = self._schedule_some(stock, requests, tokens)
        self._pass_began_s = time.perf_counter()
        self._is_crowded = not output.total_num_scheduled_tokens
        if self._is_crowded and len(requests) == 1:  # of several, one may still find memory
            free = self._scheduler.kv_cache_manager.block_pool.get_num_free_blocks()
            self._full = free, frozenset(self._scheduler.running)
        return output

    def _schedule_some(
        self, stock: Schedule, requests: list[Request], tokens: int | None = None
    ) -> SchedulerOutput:
        with show_only(self._scheduler, requests, tokens) as hidden:
            self._hidden, self._is_scheduling = hidden if tokens else [], True
            try:
                output = stock()
            finally:
                self._hidden, self._is_scheduling = [], False
        for request in self._displaced:
            self._scheduler.waiting.prepend_request(request)
        self._displaced = []
        return output

    def displace(self, request: Request) -> bool:
        """Let a deterministic request that has lost its blocks wait until this step is scheduled: a
        shared step must not compute its prompt. Returns False for any other request."""
        if not self._is_scheduling or request.request_id not in self.windows.replays:
            return False
        self._displaced.append(request)
        return True

    def complete_output(self, output: SchedulerOutput) -> None:
        """Tell the model runner that a step is a pass. Add the guesses of requests that got their
        blocks in this pass, for which vLLM schedules none."""
        is_shared = not self.is_open or self.windows.step is StepKind.SHARED
        if is_shared or not output.num_scheduled_tokens:
            return
        guesses: dict[str, list[int]] = {}
        if self.windows.step is StepKind.VERIFY:
            for name, count in output.num_scheduled_tokens.items():
                replay = self.windows.replays[name]
                end = self.windows.end_window(replay)
                guess = output.scheduled_spec_decode_tokens.get(name)
                if guess is None and (guess := replay.guess(end)):
                    missing = end - replay.request.num_computed_tokens - count
                    assert missing in (0, len(guess)), "a window is computed in one pass"
                    output.num_scheduled_tokens[name] += missing
                    output.total_num_scheduled_tokens += missing
                    output.scheduled_spec_decode_tokens[name] = guess
                guesses[name] = guess or []
        ReplayPass(rows=self.windows.shape.rows, guesses=guesses).attach(output)

    def preempt_for(self, request: Request) -> bool:
        """If `request` runs, preempt the last running request that the pass hides. Returns whether
        one was preempted."""
        running = [hidden for hidden in self._hidden if hidden.status is RequestStatus.RUNNING]
        if not running or request.status is not RequestStatus.RUNNING:
            return False
        victim = running[-1]
        self._scheduler._preempt_request(victim, 0.0)
        if victim in self._scheduler.waiting:  # it must not come back in this pass
            self._scheduler.waiting.remove_request(victim)
            self._displaced.append(victim)
        return True

    # ------------------------------------------------------------ the end of a step

    def draws_candidates(self, request: Request) -> bool:
        """Whether the tokens that this step drew for the request still have to be verified."""
        is_verified = self.windows.step is StepKind.VERIFY
        return not is_verified and request.request_id in self.windows.replays

    def keep_candidates(self, request: Request, token_ids: list[int], *, is_stale: bool) -> None:
        """Keep drawn tokens, unless their request has lost its blocks since, or the candidate
        before them may end it. is_stale: whether it left the batch meanwhile."""
        replay = self.windows.replays[request.request_id]
        if not is_stale:
            request.num_output_placeholders -= len(token_ids)
        if replay.may_end or not replay.is_current:
            replay.limit_computed()
            return
        request.append_output_token_ids(token_ids)
        params, last = request.sampling_params, request.output_token_ids[-1]
        replay.may_end = (
            last == params.eos_token_id
            or last in (params.stop_token_ids or ())
            or request.num_output_tokens >= request.max_tokens
            or self._ends_step(request)
        )

    def commit(self, request: Request) -> None:
        """Count all tokens of the request as verified, and share its whole windows."""
        request.num_output_placeholders = 0
        replay = self.windows.replays[request.request_id]
        replay.commit()
        self.windows.share(request, self.windows.shape.find_window(replay.verified))

    def begin_update(self, scheduled: SchedulerOutput, ran: ModelRunnerOutput) -> list[Replay]:
        """Count a pass that has ended. Returns its requests, for `end_update`."""
        replay_pass = find_pass(scheduled)
        if replay_pass is None:
            return []
        found = map(self.windows.replays.get, scheduled.num_scheduled_tokens)
        replays = [replay for replay in found if replay is not None]
        self._count(replay_pass, ran)
        for replay in replays:
            if replay.request.pooling_params is not None:
                # vLLM frees it in this update if its path is computed to the end.
                self.windows.share(replay.request, replay.request.num_computed_tokens)
        return replays

    def end_update(self, scheduled: SchedulerOutput, replays: list[Replay]) -> None:
        replay_pass = find_pass(scheduled)
        is_verify = replay_pass is not None and replay_pass.is_verify
        for replay in replays:
            if is_verify:  # the request's step may have ended before the last drawn token
                replay.limit_computed()
            elif replay.request.request_id in self.windows.replays:
                self.windows.share(replay.request, replay.request.num_computed_tokens)

    def _count(self, replay_pass: ReplayPass, ran: ModelRunnerOutput) -> None:
        counters = self.counters
        counters["pass_us"] += round((time.perf_counter() - self._pass_began_s) * 1e6)
        if not replay_pass.is_verify:
            counters["prefill_passes"] += 1
            return
        counters["verify_passes"] += 1
        for name in replay_pass.guesses:
            drawn = len(ran.sampled_token_ids[ran.req_id_to_index[name]])
            wrong = max(0, self._candidates[name] - (drawn - 1))
            counters["verified_windows"] += 1
            counters["verified_tokens"] += drawn
            counters["rollbacks"] += wrong > 0
            counters["recomputed_tokens"] += wrong


# ---------------------------------------------------------------- what the scheduler sees in a step


@contextmanager
def show_only(
    scheduler: Any, shown: Collection[Request], tokens: int | None = None
) -> Iterator[list[Request]]:
    """Hide all other requests from the scheduler. Yields the hidden running ones, which still take
    their places in the batch. tokens: the step's limit of tokens, None for vLLM's own."""
    running, waiting, holding = scheduler.running, scheduler.waiting, scheduler.kv_holding_waiting
    limits = scheduler.max_num_active_reqs, scheduler.max_num_scheduled_tokens
    keep = frozenset(shown)
    hidden = [request for request in running if request not in keep]
    scheduler.running = [request for request in running if request in keep]
    scheduler.waiting = _make_queue(scheduler, waiting, keep)
    scheduler.kv_holding_waiting = _make_queue(scheduler, holding, keep)
    scheduler.max_num_active_reqs -= len(hidden)
    if tokens is not None:
        scheduler.max_num_scheduled_tokens = tokens
    try:
        yield hidden
    finally:
        scheduler.max_num_active_reqs, scheduler.max_num_scheduled_tokens = limits
        before = frozenset(running)
        added = [request for request in scheduler.running if request not in before]
        scheduler.running = [r for r in running if r.status is RequestStatus.RUNNING] + added
        scheduler.waiting = _put_back(waiting, keep, scheduler.waiting)
        scheduler.kv_holding_waiting = _put_back(holding, keep, scheduler.kv_holding_waiting)


@contextmanager
def limit_chunks(scheduler: Any, tokens: int) -> Iterator[None]:
    """Let vLLM compute at most `tokens` of each prompt while the context is open. vLLM ignores this
    limit where it sees a single request. The limit of the whole step then applies."""
    config = scheduler.scheduler_config
    before = config.long_prefill_token_threshold, scheduler.adaptive_long_prefill_threshold
    config.long_prefill_token_threshold = tokens
    scheduler.adaptive_long_prefill_threshold = False
    try:
        yield
    finally:
        config.long_prefill_token_threshold, scheduler.adaptive_long_prefill_threshold = before


def _make_queue(scheduler: Any, queue: Iterable[Request], keep: Collection[Request]) -> Any:
    made = create_request_queue(scheduler.policy)
    for request in queue:
        if request in keep:
            made.add_request(request)
    return made


def _put_back(queue: Any, shown: Collection[Request], left: Iterable[Request]) -> Any:
    """Restore a queue after the step. Shown requests that are left keep their places, and requests
    that joined the queue in the step go first."""
    left = list(left)
    before, still = frozenset(queue), frozenset(left)
    kept = [request for request in queue if request not in shown or request in still]
    queue.clear()
    queue.extend([*(request for request in left if request not in before), *kept])
    return queue


def step_with_batch_queue(self: EngineCore) -> Any:
    """Step as vLLM does, but compute a pass to its end, and first end the steps in flight one by
    one. Returns as vLLM's method: the outputs, and whether the model ran."""
    passes = getattr(self.scheduler, "passes", None)
    if passes is not None:
        passes.in_flight = len(self.batch_queue)
    if passes is None or not passes.must_wait():
        for future, *_ in self.batch_queue:
            if future.done():
                future.result()  # raises a failed step's error, which the next one's would hide
        found = _step_with_batch_queue(self)
        if passes is None or not (passes.is_pass and self.batch_queue):
            return found
    future, scheduled, executed = self.batch_queue.pop()
    with self.log_error_detail(scheduled):
        ran = future.result()
        if ran is None:
            executed.result()  # raises what ended the step
            raise RuntimeError("a step ended without outputs")
    self._process_aborts_queue()
    outputs = self.scheduler.update_from_output(scheduled, ran)
    self._attach_weight_version(outputs)
    return outputs, True
