"""Speculative beam extension inside vLLM's scheduler: the draft board's decisions, carried out.

A beam that ends its step keeps its request, which from then on is the draft of child 0: held (it
has its KV and takes no place) or in the batch. Other children get requests of their own from the
boundary on. The request that asks for a step that was drawn ahead never comes to vLLM: the draft's
own goes on under its name. Which drafts run is `scheduling.draft_board`'s to say.

Ref: arXiv 2509.00195 §4.1, ADR 8. Checked with vLLM 0.32.0.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from itertools import count
from typing import Any

from vllm.v1.core.sched.output import SchedulerOutput
from vllm.v1.engine import EngineCoreOutput, EngineCoreOutputs
from vllm.v1.engine.core import EngineCore
from vllm.v1.outputs import ModelRunnerOutput
from vllm.v1.request import Request, RequestStatus

from flashedge.engine.vllm.inside.draft_requests import (
    Label,
    StepEnd,
    Work,
    draft_request,
    ended,
    noise_args,
    replay,
    reused,
    sampling_of,
    stop_ids,
)
from flashedge.engine.vllm.inside.held_requests import HoldingScheduler
from flashedge.engine.vllm.inside.keys import ARGS_KEY
from flashedge.engine.vllm.speculator import follow_up_of
from flashedge.scheduling.speculation.draft_board import DraftBoard
from flashedge.scheduling.speculation.drafts import Beam, Draft
from flashedge.scheduling.speculation.slots import BatchView
from flashedge.search.steps import BoundaryRule
from flashedge.types import FinishReason


class SpeculativeScheduler(HoldingScheduler):
    """Goes on past the end of steps that say what follows them (`follow_up` among their
    parameters). Requests without one are vLLM's alone."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        config = self.vllm_config.additional_config.get(ARGS_KEY, {})
        rule = config.get("boundary")
        self._rule = BoundaryRule.from_json(rule) if rule else None
        self._flat_batch = 0  # see `BatchView`
        self._board = DraftBoard()
        self._asked: dict[str, Work] = {}  # steps that were asked for, by the front end's id
        self._replays: list[tuple[int, EngineCoreOutput]] = []  # by client, for the next outputs
        self._draft_ids = count()
        self._like: Request | None = None

    # ------------------------------------------------------------ requests come and go

    def add_request(self, request: Request) -> None:
        args = noise_args(request)
        if not args.get("follow_up"):
            super().add_request(request)
            return
        self._like = request
        follow_up, sampling = follow_up_of(args["follow_up"]), sampling_of(args)
        path = tuple(request.prompt_token_ids)
        draft = self._board.adopt(follow_up, path, args["seed"], sampling)
        beam = self._board.begin(follow_up, sampling)
        work = None if draft is None else self._drafting.pop(draft, None)
        if work is not None:
            self._take_over(work, request, beam)
            return
        work = self._works[request.request_id] = Work(
            request=request, to_boundary=args["to_boundary"]
        )
        work.ask(Label(name=request.request_id), beam)
        self._asked[request.request_id] = work
        super().add_request(request)

    def _take_over(self, work: Work, asked: Request, beam: Beam) -> None:
        """A draft's request goes on as the step that is asked for, by that step's own rules."""
        assert work.draft is not None, "it was in _drafting"
        drawn, rows, request = work.draft.token_ids, work.rows, work.request
        to_boundary = noise_args(asked)["to_boundary"]
        end = StepEnd(
            max_tokens=asked.max_tokens,
            room=self.max_model_len - asked.num_prompt_tokens,
            rule=self._rule if to_boundary else None,
            stop_ids=stop_ids(asked),
        )
        taken, finish = end.of(drawn)
        label = Label(
            name=asked.request_id, drawn=taken, stats=reused(request, asked.num_prompt_tokens)
        )
        work.ask(label, beam)
        self._asked[label.name] = work
        if taken:
            self.counters["kept_steps"] += 1
            self.counters["kept_tokens"] += taken
            output = replay(drawn[:taken], rows[:taken], finish)
            label.put_on(output)
            self._replays.append((asked.client_index, output))
        if finish is None:
            request.priority, request.arrival_time = asked.priority, asked.arrival_time
            work.aim(asked.max_tokens, to_boundary=to_boundary)
            self._go_on(request)
            return
        path = (*asked.prompt_token_ids, *drawn[:taken])
        if self._finished(work, path, finish) and taken == len(drawn):
            if work.is_running:
                self._hold(request)
        else:  # nothing follows, or its KV holds tokens that the step may not have
            self._drop([work])

    def _go_on(self, request: Request) -> None:
        """As a standard request: before the drafts that run, or waiting for its turn."""
        if request.status != RequestStatus.RUNNING:
            self._enqueue_waiting_request(request)
            return
        self.running.remove(request)
        drafts = (i for i, other in enumerate(self.running) if self._is_draft(other))
        self.running.insert(next(drafts, len(self.running)), request)

    def finish_requests(
        self, request_ids: str | Iterable[str] | None, finished_status: RequestStatus
    ) -> list[Request]:
        """Cancels what the front end knows by these ids: another of vLLM's requests it may be, or
        one that does something else by now and is left alone."""
        if request_ids is None:
            self._board.clear()
            for table in (self._works, self._asked, self._drafting):
                table.clear()
            return super().finish_requests(None, finished_status)
        names = {request_ids} if isinstance(request_ids, str) else set(request_ids)
        found = [self._withdrawn(name) for name in names]
        return super().finish_requests([own for own in found if own], finished_status)

    def _withdrawn(self, name: str) -> str | None:
        """vLLM's id of what the front end calls `name`."""
        work = self._asked.pop(name, None)
        if work is None:
            return None if name in self._works else name
        assert work.beam is not None, "it was asked for"
        self._board.withdraw(work.beam)
        del self._works[work.request.request_id]
        return work.request.request_id

    # ------------------------------------------------------------ the end of a step

    def _handle_stopped_request(self, request: Request) -> bool:
        work = self._works.get(request.request_id)
        if work is None:
            return super()._handle_stopped_request(request)
        status, finish = request.status, ended(request, self.max_model_len)
        request.status = RequestStatus.PREEMPTED  # held
        if work.draft is not None:
            work.finish = finish  # `_note` tells the board
        elif not self._finished(work, tuple(request.all_token_ids), finish):
            del self._works[request.request_id]
            request.status = status
            return True
        return False

    def _finished(self, work: Work, path: tuple[int, ...], finish: FinishReason) -> bool:
        """The step is done. Whether its request is the draft of what follows from now on."""
        assert work.beam is not None, "it was asked for"
        assert work.label is not None, "it was asked for"
        del self._asked[work.label.name]
        full = len(path) >= self.max_model_len
        draft = self._board.finish(work.beam, path, FinishReason.LENGTH if full else finish)
        if draft is None or draft.seed != work.seed:
            return False
        work.go_ahead(draft)
        self._drafting[draft] = work
        return True

    # ------------------------------------------------------------ the engine's steps

    def schedule(self, *args: Any, **kwargs: Any) -> Any:
        if not self._works:
            return super().schedule(*args, **kwargs)
        queued = self._plan()
        output = super().schedule(*args, **kwargs)
        for draft in queued:
            work = self._drafting[draft]
            if not work.is_running:  # there was no room after all
                self._unqueue(work.request)
                self._board.stopped(draft)
        return output

    def _plan(self) -> tuple[Draft, ...]:
        """Take drafts out of the batch, and queue those that are to come into it."""
        for draft in self._board.running:
            if not self._drafting[draft].is_running:
                self._board.stopped(draft)  # memory was short
        plan = self._board.plan(
            BatchView(
                running=len(self.running) - len(self._board.running),
                waiting=len(self.waiting) + len(self.kv_holding_waiting),
                max_running=self.max_num_active_reqs,
                spare_blocks=self._pool.get_num_free_blocks(),
                flat_batch=self._flat_batch,
            )
        )
        for draft in plan.hold:
            self._hold(self._drafting[draft].request)
        for draft in plan.run:
            self._enqueue_waiting_request(self._request_of(draft))
        self.counters["stopped"] += len(plan.hold)
        return plan.run

    def _request_of(self, draft: Draft) -> Request:
        work = self._drafting.get(draft)
        if work is None:
            assert self._like is not None, "drafts follow requests"
            name = f"draft-{next(self._draft_ids)}"
            request = draft_request(draft, name, self._like, self.max_model_len)
            self.requests[name] = request
            work = self._works[name] = self._drafting[draft] = Work(
                request=request, to_boundary=True
            )
            work.go_ahead(draft)
        return work.request

    def update_from_output(
        self, scheduled: SchedulerOutput, ran: ModelRunnerOutput
    ) -> dict[int, EngineCoreOutputs]:
        if not (self._works or self._replays):
            return super().update_from_output(scheduled, ran)
        found = (self._works.get(name) for name in scheduled.num_scheduled_tokens)
        works = {work.request.request_id: (work, work.label) for work in found if work}
        outputs = super().update_from_output(scheduled, ran)  # may change what they do
        for of_client in outputs.values():
            of_client.outputs = list(self._sorted_out(of_client.outputs, works))
        replays, self._replays = self._replays, []
        for client, output in reversed(replays):
            outputs.setdefault(client, EngineCoreOutputs()).outputs.insert(0, output)
        return outputs

    def _sorted_out(
        self,
        outputs: Iterable[EngineCoreOutput],
        works: Mapping[str, tuple[Work, Label | None]],
    ) -> Iterator[EngineCoreOutput]:
        """Those that the front end waits for, as it knows them; those of drafts are kept here."""
        for output in outputs:
            work, label = works.get(output.request_id, (None, None))
            if work is not None:
                work.request.stop_reason = None
            if label is not None:
                label.put_on(output)
            if work is None or label is not None:
                yield output
            else:
                self._note(work, output)

    def _note(self, work: Work, output: EngineCoreOutput) -> None:
        assert work.draft is not None, "it has no label"
        work.rows.append(output.new_logprobs)
        (token,) = output.new_token_ids
        logprob = float(output.new_logprobs.logprobs[0][0])
        self._board.drawn(work.draft, token, logprob, work.finish)
        self.counters["drawn_tokens"] += 1

    def has_requests(self) -> bool:
        return super().has_requests() or bool(self._replays)

    # ------------------------------------------------------------ engine.base.Speculator

    def whole_drafts(self, run: str) -> list[tuple[int, list[int]]]:
        return [(draft.seed, draft.token_ids) for draft in self._board.whole(run)]

    def keep_drafts(self, run: str, level: int, seeds: Collection[int], flat_batch: int) -> int:
        """Returns the tokens drawn for the run so far. flat_batch: from now on, see `BatchView`."""
        self._flat_batch = flat_batch
        self._discard(self._board.keep(run, level, frozenset(seeds)))
        return self._board.tokens_drawn(run)

    def end_drafts(self, run: str) -> int:
        drawn = self._board.tokens_drawn(run)
        self._discard(self._board.end(run))
        return drawn

    def _discard(self, drafts: Iterable[Draft]) -> None:
        self._drop([self._drafting[draft] for draft in drafts if draft in self._drafting])


# What `control` does for the quota: reached by `call_utility_async("flashedge_…")` between steps.


def _whole_drafts(self: EngineCore, run: str) -> list[tuple[int, list[int]]]:
    return self.scheduler.whole_drafts(run)


def _keep_drafts(self: EngineCore, run: str, level: int, seeds: list[int], flat_batch: int) -> int:
    return self.scheduler.keep_drafts(run, level, seeds, flat_batch)


def _end_drafts(self: EngineCore, run: str) -> int:
    return self.scheduler.end_drafts(run)


def _speculation(self: EngineCore) -> dict[str, int]:
    return self.scheduler.counters


EngineCore.flashedge_whole_drafts = _whole_drafts  # type: ignore[attr-defined]
EngineCore.flashedge_keep_drafts = _keep_drafts  # type: ignore[attr-defined]
EngineCore.flashedge_end_drafts = _end_drafts  # type: ignore[attr-defined]
EngineCore.flashedge_speculation = _speculation  # type: ignore[attr-defined]
