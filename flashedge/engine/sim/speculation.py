"""Speculative beam extension in a simulated generator: the draft board's decisions, carried out."""

from __future__ import annotations

from collections.abc import Collection, Iterable, MutableMapping, Sequence
from itertools import count

from flashedge.engine.base import ExtendRequest, WholeDraft
from flashedge.engine.sim import scheduler as sim_scheduler
from flashedge.engine.sim.engine_loop import Job, SimConfig
from flashedge.engine.sim.generation import Drafting, Generation
from flashedge.engine.sim.scheduler import SequenceState, SimScheduler
from flashedge.engine.sim.text import Reader, SimModel
from flashedge.scheduling.speculation.draft_board import DraftBoard
from flashedge.scheduling.speculation.drafts import Beam, Draft
from flashedge.scheduling.speculation.slots import BatchView, truncated
from flashedge.types import FinishReason

FIRST_ID = 1 << 40  # of speculative sequences: beyond those of requests

Drawn = tuple[Sequence[int], Sequence[float]]  # tokens, log-probabilities


class SimSpeculator:
    """Implements engine.base.Speculator. jobs: the engine's, by sequence, drafts among them.

    truncation: the paper's R. A child without a draft of its own then begins with a part of its
    sibling 0's: another tree, for comparison only.
    """

    def __init__(
        self,
        scheduler: SimScheduler,
        model: SimModel,
        config: SimConfig,
        jobs: MutableMapping[int, Job],
        truncation: float | None = None,
    ) -> None:
        self._scheduler = scheduler
        self._model = model
        self._config = config
        self._jobs = jobs
        self._truncation = truncation
        self.flat_batch = config.flat_batch
        self._board = DraftBoard()
        self._drafting: dict[Draft, Drafting] = {}
        self._ids = count(FIRST_ID)

    # ------------------------------------------------------------ engine.base.Speculator

    async def whole_drafts(self, run: str) -> tuple[WholeDraft, ...]:
        whole = self._board.whole(run)
        return tuple(WholeDraft(seed=d.seed, token_ids=tuple(d.token_ids)) for d in whole)

    async def keep(self, run: str, level: int, seeds: Collection[int]) -> None:
        self._drop(self._board.keep(run, level, seeds))

    async def end(self, run: str) -> int:
        drawn = self._board.tokens_drawn(run)
        self._drop(self._board.end(run))
        return drawn

    # ------------------------------------------------------------ requests

    def begin(self, request: ExtendRequest) -> Beam | None:
        follow_up = request.follow_up
        return None if follow_up is None else self._board.begin(follow_up, request.sampling)

    def finished(self, beam: Beam, job: Generation, reason: FinishReason) -> None:
        """The request is done: its own stream may go on from its KV."""
        draft = self._board.finish(beam, job.path, reason)
        if draft is None:
            return
        sequence, reader = self._sequence(draft), job.reader
        if job.sequence.state is SequenceState.DONE:  # it and its reader went too far
            reader = self._model.reader(draft.path)
        else:
            self._scheduler.take_over(sequence, job.sequence)
        self._scheduler.hold(sequence)
        self._add(draft, sequence, reader)

    def withdraw(self, beam: Beam) -> None:
        self._board.withdraw(beam)

    def adopt(self, request: ExtendRequest, sequence: sim_scheduler.Sequence) -> Drawn:
        """What was drawn ahead of `request`, now in `sequence` with its KV; nothing, mostly."""
        follow_up, path = request.follow_up, request.token_ids
        if follow_up is None:
            return (), ()
        draft = self._board.adopt(follow_up, path, request.seed, request.sampling)
        if draft is None:
            return self._part_of_sibling(request, sequence)
        sequence.tokens += draft.token_ids
        job = self._drafting.pop(draft, None)
        if job is not None:
            del self._jobs[job.sequence.id]
            self._scheduler.take_over(sequence, job.sequence)
            sequence.cached = min(sequence.computed, len(path)) or None
        return draft.token_ids, draft.logprobs

    # ------------------------------------------------------------ the engine's steps

    def before_step(self) -> None:
        """Take out and put in what the board says."""
        for draft in self._board.running:
            if self._drafting[draft].sequence.state is SequenceState.HELD:
                self._board.stopped(draft)  # memory was short
        running = [s for s in self._scheduler.running if not s.speculative]
        plan = self._board.plan(
            BatchView(
                running=len(running),
                waiting=sum(not s.speculative for s in self._scheduler.waiting),
                max_running=self._scheduler.max_num_seqs,
                spare_blocks=self._scheduler.spare_blocks,
                flat_batch=self.flat_batch,
            )
        )
        for draft in plan.hold:
            self._scheduler.hold(self._drafting[draft].sequence)
        for draft in plan.run:
            if draft in self._drafting:
                self._scheduler.resume(self._drafting[draft].sequence)
            else:
                sequence = self._sequence(draft)
                self._add(draft, sequence, self._model.reader(draft.path))
                self._scheduler.add(sequence)

    def clear(self) -> None:
        """The engine died, and every job with it."""
        self._board.clear()
        self._drafting.clear()

    # ------------------------------------------------------------ inner

    def _sequence(self, draft: Draft) -> sim_scheduler.Sequence:
        return sim_scheduler.Sequence(
            id=next(self._ids),
            tokens=[*draft.path, *draft.token_ids],
            priority=-draft.follow_up.potential,
            speculative=True,
        )

    def _add(self, draft: Draft, sequence: sim_scheduler.Sequence, reader: Reader) -> None:
        self._drafting[draft] = self._jobs[sequence.id] = Drafting(
            sequence,
            draft,
            reader,
            room=self._config.max_model_len - len(draft.path),
            board=self._board,
            on_whole=lambda job: self._scheduler.hold(job.sequence),
        )

    def _drop(self, drafts: Iterable[Draft]) -> None:
        for draft in drafts:
            job = self._drafting.pop(draft, None)
            if job is not None:
                del self._jobs[job.sequence.id]
                self._scheduler.remove(job.sequence)

    def _part_of_sibling(self, request: ExtendRequest, sequence: sim_scheduler.Sequence) -> Drawn:
        if self._truncation is None or request.follow_up is None:
            return (), ()
        own = self._board.own_stream(request.follow_up, request.token_ids)
        if own is None:
            return (), ()
        size = truncated(len(own.token_ids), self._truncation, request.seed)
        sequence.tokens += own.token_ids[:size]
        return own.token_ids[:size], own.logprobs[:size]
