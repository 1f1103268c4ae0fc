"""The simulated generator: the steps of requests, and the drafts of the next ones."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import (
    AsyncGenerator,
    Callable,
    Collection,
    Iterable,
    Mapping,
    MutableMapping,
    Sequence,
)
from itertools import count

from flashedge.engine.base import Chunk, ExtendRequest
from flashedge.errors import EngineError, RequestError
from flashedge.scheduling.speculation.draft_board import DraftBoard
from flashedge.scheduling.speculation.draft_choice import BatchView
from flashedge.scheduling.speculation.drafts import Beam, Draft
from flashedge.scheduling.speculation.step_costs import StepCosts
from flashedge.search.step_rules import StepEnd
from flashedge.types import FinishReason, TokenIds
from scripts.lab.sim.engine_loop import Faults, Job, SimConfig, SimEngine
from scripts.lab.sim.model import EOS, RULES, Reader, SimCodec, SimModel
from scripts.lab.sim.scheduler import SequenceState, SimScheduler, SimSequence, Slice
from scripts.lab.sim.token_drafts import TokenDrafts
from scripts.lab.sim.writing_job import WritingJob


class GenerationJob(WritingJob):
    """One ExtendRequest under way."""

    def __init__(
        self,
        sequence: SimSequence,
        request: ExtendRequest,
        reader: Reader,
        config: SimConfig,
        on_end: Callable[[GenerationJob, FinishReason], None],
    ) -> None:
        """on_end: called with the reason as soon as the step ends."""
        start = len(request.token_ids)
        rule = request.step_rule if request.to_boundary else None
        end = _make_step_end(request.max_tokens, config.max_model_len - start, rule)
        super().__init__(sequence, reader, request, end, start)
        self.out: asyncio.Queue[Chunk | EngineError] = asyncio.Queue()
        """Chunks, or the error that ended the request."""
        self._interval = config.stream_interval
        self._confidences = request.confidences
        self._on_end = on_end
        self._generated = 0
        self._previous: int | None = None
        self._pending: list[tuple[int, float]] = []
        self._has_sent = False

    @property
    def path(self) -> tuple[int, ...]:
        """Prompt and what was generated so far."""
        return tuple(self.sequence.tokens[: self._start + self._generated])

    def replay(self, drafted: Sequence[tuple[int, float]]) -> bool:
        """Start with the tokens of an adopted draft, which are in the sequence already. The
        request's own limits hold: it may end before it has used all of them. True when it ends."""
        finish = None
        for token, logprob in drafted:
            finish = finish or self._add_token(token, logprob)
        if self._pending:
            self._send(finish, speculated_tokens=len(self._pending))
        return finish is not None

    def advance(self) -> bool:
        finish = self._add_token(*self._write())
        if finish or len(self._pending) >= self._interval:
            self._send(finish)
        return finish is not None

    def fail(self, error: EngineError) -> None:
        self.out.put_nowait(error)

    def _add_token(self, token: int, logprob: float) -> FinishReason | None:
        self._pending.append((token, logprob))
        self._generated += 1
        previous, self._previous = self._previous, token
        return self._end.find_reason(previous, token, self._generated)

    def _send(self, finish: FinishReason | None, speculated_tokens: int = 0) -> None:
        token_ids, logprobs = zip(*self._pending, strict=True)
        cached = 0 if self._has_sent else min(self.sequence.cached or 0, self._start)
        self.out.put_nowait(
            Chunk(
                token_ids=token_ids,
                logprobs=logprobs,
                finish=finish,
                cached_tokens=cached,
                speculated_tokens=speculated_tokens,
                # The model says how likely its token was, which stands for the likeliest ones.
                confidences=tuple(-p for p in logprobs) if self._confidences else (),
            )
        )
        self._pending, self._has_sent = [], True
        if finish is not None:
            self._on_end(self, finish)


class DraftJob(WritingJob):
    """One draft under way. It is never done by itself: it waits to be adopted or dropped."""

    def __init__(
        self,
        sequence: SimSequence,
        draft: Draft,
        reader: Reader,
        room: int,
        append: Callable[[Draft, int, float, FinishReason | None], None],
    ) -> None:
        """room: tokens that fit into the context; append: adds each token to the draft."""
        after = draft.continuation
        end = _make_step_end(after.granularity.max_tokens, room, after.boundary)
        super().__init__(sequence, reader, draft, end, len(draft.path))
        self._draft = draft
        self._append = append

    def advance(self) -> bool:
        drawn = self._draft.token_ids
        previous = drawn[-1] if drawn else None
        token, logprob = self._write()
        finish = self._end.find_reason(previous, token, len(drawn) + 1)
        self._append(self._draft, token, logprob, finish)
        return False

    def fail(self, error: EngineError) -> None:
        """Nobody waits for a draft."""


def _make_step_end(max_tokens: int, room: int, rule: str | None) -> StepEnd:
    boundary = None if rule is None else RULES[rule]
    return StepEnd(max_tokens=max_tokens, room=room, boundary=boundary, stop_ids={EOS})


def _find_priority(draft: Draft) -> float:
    """The likeliest drafts go first."""
    return -draft.chance


FIRST_DRAFT_ID = 1 << 40  # ids of requests' sequences stay below


class SimSpeculator:
    """Implements engine.base.Speculator."""

    def __init__(
        self,
        scheduler: SimScheduler,
        model: SimModel,
        config: SimConfig,
        jobs: MutableMapping[int, Job],
        costs: StepCosts,
    ) -> None:
        """jobs: the engine's, by sequence; drafts are added to them. costs: of its steps."""
        self._scheduler = scheduler
        self._model = model
        self._config = config
        self._jobs = jobs
        self._costs = costs
        self.board = DraftBoard()
        """Says which drafts there are, and which of them to run."""
        self.on_commit: Callable[[], None] = lambda: None
        """Called when children have become certain, which may run without a request."""
        self._draft_jobs: dict[Draft, DraftJob] = {}
        self._ids = count(FIRST_DRAFT_ID)

    async def list_complete(self, run: str) -> Mapping[int, TokenIds]:
        return {draft.seed: tuple(draft.token_ids) for draft in self.board.list_complete(run)}

    async def drop_unused(self, run: str, levels: Collection[int], seeds: Collection[int]) -> None:
        self._remove(self.board.drop_unused(run, levels, seeds))

    async def commit(self, run: str, level: int, children: Mapping[int, int]) -> None:
        self.board.commit(run, level, children)
        self.on_commit()

    async def end_run(self, run: str) -> tuple[int, int]:
        drawn = self.board.count_drawn(run)
        self._remove(self.board.end_run(run))
        return drawn

    def add_beam(
        self, request: ExtendRequest, sequence: SimSequence
    ) -> tuple[Beam | None, list[tuple[int, float]]]:
        """Note a requested step, and move the tokens and KV of its draft into `sequence`. Returns
        the step, None if nothing will follow it, and these tokens with their log-probabilities."""
        continuation, path = request.continuation, request.token_ids
        if continuation is None:
            return None, []
        beam, draft = self.board.add_beam(continuation, path, request.seed, request.sampling)
        if draft is None:
            return beam, []
        sequence.tokens += draft.token_ids
        job = self._draft_jobs.pop(draft, None)
        if job is not None:
            del self._jobs[job.sequence.id]
            self._scheduler.transfer_kv(job.sequence, sequence)
            sequence.cached = min(sequence.computed, len(path)) or None
        return beam, list(zip(draft.token_ids, draft.logprobs, strict=True))

    def finish_beam(self, beam: Beam, job: GenerationJob, reason: FinishReason) -> None:
        """The request's step has ended: child 0's draft continues from its KV."""
        path = job.path
        is_full = len(path) >= self._config.max_model_len
        draft = self.board.finish_beam(beam, path, ends_path=reason.ends_path or is_full)
        if draft is None:
            return
        sequence, reader = self._make_sequence(draft), job.reader
        if job.sequence.state is SequenceState.DONE:  # sequence and reader are past the boundary
            reader = Reader(self._model, draft.path)
        else:
            self._scheduler.transfer_kv(job.sequence, sequence)
        self._scheduler.pause(sequence)
        self._add_job(draft, sequence, reader)

    def schedule_drafts(self) -> None:
        """Pause drafts and queue others, as the board plans."""
        for draft in self.board.running:
            if self._draft_jobs[draft].sequence.state is SequenceState.PAUSED:
                self.board.pause(draft)  # the scheduler ran out of blocks
        base_s, sequence_s = self._costs.undrafted
        plan = self.board.plan(
            BatchView(
                running=sum(not s.is_draft for s in self._scheduler.running),
                waiting=sum(not s.is_draft for s in self._scheduler.waiting),
                max_running=self._scheduler.max_num_seqs,
                spare_blocks=self._scheduler.spare_blocks,
                base_s=base_s,
                sequence_s=sequence_s,
            )
        )
        for draft in plan.pause:
            self._scheduler.pause(self._draft_jobs[draft].sequence)
        for draft in plan.run:
            if draft in self._draft_jobs:
                sequence = self._draft_jobs[draft].sequence
                sequence.priority = _find_priority(draft)
                self._scheduler.resume(sequence)
            else:
                sequence = self._make_sequence(draft)
                self._add_job(draft, sequence, Reader(self._model, draft.path))
                self._scheduler.add(sequence)

    def clear(self) -> None:
        """The engine died, and every job with it."""
        self.board.clear()
        self._draft_jobs.clear()

    def _make_sequence(self, draft: Draft) -> SimSequence:
        return SimSequence(
            id=next(self._ids),
            tokens=[*draft.path, *draft.token_ids],
            priority=_find_priority(draft),
            is_draft=True,
        )

    def _add_job(self, draft: Draft, sequence: SimSequence, reader: Reader) -> None:
        room = self._config.max_model_len - len(draft.path)
        job = DraftJob(sequence, draft, reader, room, self._append)
        self._draft_jobs[draft] = self._jobs[sequence.id] = job

    def _append(
        self, draft: Draft, token: int, logprob: float, finish: FinishReason | None
    ) -> None:
        self.board.append(draft, token, logprob, finish)
        if finish is not None:
            self._scheduler.pause(self._draft_jobs[draft].sequence)

    def _remove(self, drafts: Iterable[Draft]) -> None:
        for draft in drafts:
            job = self._draft_jobs.pop(draft, None)
            if job is not None:
                del self._jobs[job.sequence.id]
                self._scheduler.remove(job.sequence)


class SimulatedGenerator(SimEngine):
    """Implements engine.base.Generator: tokens of a SimModel at the cost of a real model."""

    most_drafted = sys.maxsize

    def __init__(
        self,
        config: SimConfig,
        model: SimModel,
        *,
        faults: Faults | None = None,
        gate: asyncio.Lock | None = None,
        speculator: type[SimSpeculator] = SimSpeculator,
    ) -> None:
        super().__init__(config, faults=faults, gate=gate)
        self._model = model
        self.codec = SimCodec()
        costs = StepCosts()
        self.speculator = speculator(self._scheduler, model, config, self._jobs, costs)
        self.speculator.on_commit = self._wake
        self._token_drafts = TokenDrafts(self._scheduler, self._jobs, costs)
        self.counters = self._token_drafts.counters

    def kill(self, detail: str = "killed") -> None:
        super().kill(detail)
        self.speculator.clear()

    def _next_batch(self) -> tuple[Slice, ...]:
        if not self._is_offloaded:
            self.speculator.schedule_drafts()
            self._token_drafts.propose()
        return super()._next_batch()

    async def _compute(self, batch: tuple[Slice, ...]) -> None:
        before_s = self.busy_s
        await super()._compute(batch)
        self._token_drafts.note_step(batch, self.busy_s - before_s)

    def _advance_job(self, job: Job) -> bool:
        return self._token_drafts.advance(job)

    def extend(self, request: ExtendRequest) -> AsyncGenerator[Chunk]:
        """Raises RequestError at once, EngineError from the stream."""
        if not request.token_ids:
            raise RequestError("token_ids is empty; give at least one token", param="token_ids")
        if request.max_tokens < 1:
            raise RequestError(
                f"max_tokens is {request.max_tokens}; it must be at least 1", param="max_tokens"
            )
        if request.guidance is not None:
            raise RequestError(
                "the simulated generator has no words, so it can't follow a grammar",
                hint="leave tools and response_format out, or choose a real pair",
                param="response_format",
            )
        if request.entropy_rule is not None:
            raise RequestError(
                "the simulated generator has no entropies, so it can't end steps by them",
                hint="choose another step rule, or a real pair",
                param="step_rule",
            )
        self._check_length(len(request.token_ids), "the path")
        return self._stream(request)

    async def _stream(self, request: ExtendRequest) -> AsyncGenerator[Chunk]:
        self._check_ready()
        speculator = self.speculator
        sequence = SimSequence(
            id=next(self._ids), tokens=list(request.token_ids), program=request.program
        )
        beam, drafted = speculator.add_beam(request, sequence)
        if request.token_drafts and self._model.writes_texts:
            self._token_drafts.add_request(request, sequence)

        def on_end(job: GenerationJob, reason: FinishReason) -> None:
            if job.path != tuple(sequence.tokens):
                self._scheduler.remove(sequence)  # the adopted draft is longer than the step
            if beam is not None:
                speculator.finish_beam(beam, job, reason)

        reader = Reader(self._model, sequence.tokens)
        job = GenerationJob(sequence, request, reader, self.config, on_end)
        try:
            if not job.replay(drafted):
                self._begin(job)
            while True:
                chunk = await job.out.get()
                if isinstance(chunk, EngineError):
                    raise chunk
                yield chunk
                if chunk.finish:
                    return
        finally:
            self._end(job)
            if beam is not None:
                speculator.board.cancel_beam(beam)
