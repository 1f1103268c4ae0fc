"""Speculation in the simulated generator: makes a sequence of each draft of the draft board."""

from __future__ import annotations

from collections.abc import Collection, Iterable, MutableMapping, Sequence
from itertools import count
from statistics import NormalDist

from flashedge.engine.base import CompleteDraft, ExtendRequest
from flashedge.scheduling.speculation.draft_board import DraftBoard
from flashedge.scheduling.speculation.draft_choice import BatchView
from flashedge.scheduling.speculation.drafts import Beam, Draft
from flashedge.search.tree import mix64
from flashedge.types import FinishReason, TokenIds
from scripts.lab.sim.config import SimConfig
from scripts.lab.sim.jobs import DraftJob, GenerationJob, Job
from scripts.lab.sim.model import Reader, SimModel
from scripts.lab.sim.scheduler import SimScheduler
from scripts.lab.sim.sequence import SequenceState, SimSequence

FIRST_DRAFT_ID = 1 << 40  # ids of requests' sequences stay below
TRUNCATION_SPREAD = 0.1  # standard deviation around R; the paper gives none

DraftedTokens = tuple[Sequence[int], Sequence[float]]  # token ids, log-probabilities


class SimSpeculator:
    """Implements engine.base.Speculator."""

    def __init__(
        self,
        scheduler: SimScheduler,
        model: SimModel,
        config: SimConfig,
        jobs: MutableMapping[int, Job],
        truncation: float | None = None,
    ) -> None:
        """jobs: the engine's, by sequence; drafts are added to them. truncation: the paper's R. A
        child without a draft of its own then starts with a part of child 0's draft, which makes
        another tree: for comparison only."""
        self._scheduler = scheduler
        self._model = model
        self._config = config
        self._jobs = jobs
        self._truncation = truncation
        self.flat_batch = config.flat_batch
        self._board = DraftBoard()
        self._draft_jobs: dict[Draft, DraftJob] = {}
        self._first_children: dict[tuple[str, TokenIds], Draft] = {}
        """Drafts of child 0 by run and path, for `truncation`."""
        self._ids = count(FIRST_DRAFT_ID)

    # ------------------------------------------------------------ engine.base.Speculator

    async def list_complete(self, run: str) -> tuple[CompleteDraft, ...]:
        drafts = self._board.list_complete(run)
        return tuple(CompleteDraft(seed=d.seed, token_ids=tuple(d.token_ids)) for d in drafts)

    async def drop_unused(self, run: str, levels: Collection[int], seeds: Collection[int]) -> None:
        self._remove(self._board.drop_unused(run, levels, seeds))

    async def end_run(self, run: str) -> int:
        drawn = self._board.count_drawn(run)
        self._remove(self._board.end_run(run))
        return drawn

    # ------------------------------------------------------------ requests

    def adopt(self, request: ExtendRequest, sequence: SimSequence) -> DraftedTokens:
        """Move the tokens and KV of the request's draft into `sequence`. Returns the tokens: none
        where it has no draft."""
        continuation, path = request.continuation, request.token_ids
        if continuation is None:
            return (), ()
        draft = self._board.adopt(continuation, path, request.seed, request.sampling)
        if draft is None:
            return self._copy_sibling(request, sequence)
        sequence.tokens += draft.token_ids
        job = self._draft_jobs.pop(draft, None)
        if job is not None:
            del self._jobs[job.sequence.id]
            self._scheduler.transfer_kv(job.sequence, sequence)
            sequence.cached = min(sequence.computed, len(path)) or None
        return draft.token_ids, draft.logprobs

    def add_beam(self, request: ExtendRequest) -> Beam | None:
        """None where the request does not say what comes next."""
        if request.continuation is None:
            return None
        return self._board.add_beam(request.continuation, request.sampling)

    def finish_beam(self, beam: Beam, job: GenerationJob, reason: FinishReason) -> None:
        """The request's step has ended: child 0's draft continues from its KV."""
        path = job.path
        is_full = len(path) >= self._config.max_model_len
        draft = self._board.finish_beam(beam, path, ends_path=reason.ends_path or is_full)
        if draft is None:
            return
        self._first_children.setdefault((draft.continuation.run, draft.path), draft)
        sequence, reader = self._make_sequence(draft), job.reader
        if job.sequence.state is SequenceState.DONE:  # sequence and reader are past the boundary
            reader = self._model.reader(draft.path)
        else:
            self._scheduler.transfer_kv(job.sequence, sequence)
        self._scheduler.pause(sequence)
        self._add_job(draft, sequence, reader)

    def cancel_beam(self, beam: Beam) -> None:
        self._board.cancel_beam(beam)

    # ------------------------------------------------------------ the engine's steps

    def schedule_drafts(self) -> None:
        """Pause drafts and queue others, as the board plans."""
        for draft in self._board.running:
            if self._draft_jobs[draft].sequence.state is SequenceState.PAUSED:
                self._board.pause(draft)  # the scheduler ran out of blocks
        plan = self._board.plan(
            BatchView(
                running=sum(not s.is_draft for s in self._scheduler.running),
                waiting=sum(not s.is_draft for s in self._scheduler.waiting),
                max_running=self._scheduler.max_num_seqs,
                spare_blocks=self._scheduler.spare_blocks,
                flat_batch=self.flat_batch,
                unmeasured_batch=self._config.unmeasured_batch,
            )
        )
        for draft in plan.pause:
            self._scheduler.pause(self._draft_jobs[draft].sequence)
        for draft in plan.run:
            if draft in self._draft_jobs:
                self._scheduler.resume(self._draft_jobs[draft].sequence)
            else:
                sequence = self._make_sequence(draft)
                self._add_job(draft, sequence, self._model.reader(draft.path))
                self._scheduler.add(sequence)

    def clear(self) -> None:
        """The engine died, and every job with it."""
        self._board.clear()
        self._draft_jobs.clear()

    # ------------------------------------------------------------ inner

    def _make_sequence(self, draft: Draft) -> SimSequence:
        return SimSequence(
            id=next(self._ids),
            tokens=[*draft.path, *draft.token_ids],
            priority=-draft.continuation.max_drafts,
            is_draft=True,
        )

    def _add_job(self, draft: Draft, sequence: SimSequence, reader: Reader) -> None:
        self._draft_jobs[draft] = self._jobs[sequence.id] = DraftJob(
            sequence,
            draft,
            reader,
            room=self._config.max_model_len - len(draft.path),
            board=self._board,
            on_complete=lambda job: self._scheduler.pause(job.sequence),
        )

    def _remove(self, drafts: Iterable[Draft]) -> None:
        for draft in drafts:
            job = self._draft_jobs.pop(draft, None)
            if job is not None:
                del self._jobs[job.sequence.id]
                self._scheduler.remove(job.sequence)

    def _copy_sibling(self, request: ExtendRequest, sequence: SimSequence) -> DraftedTokens:
        """Start `sequence` with a part of child 0's draft, as the paper does."""
        if self._truncation is None or request.continuation is None:
            return (), ()
        first = self._first_children.get((request.continuation.run, request.token_ids))
        if first is None:
            return (), ()
        size = truncate_draft(len(first.token_ids), self._truncation, request.seed)
        sequence.tokens += first.token_ids[:size]
        return first.token_ids[:size], first.logprobs[:size]


def truncate_draft(length: int, ratio: float, seed: int) -> int:
    """How many of a draft's `length` tokens a duplicate keeps by the paper's rule (line 19): a
    share drawn from a normal distribution with mean R = `ratio`.

    For comparison only: a duplicate that starts with its sibling's tokens is another search.
    """
    share = NormalDist(ratio, TRUNCATION_SPREAD).inv_cdf((mix64(seed, length) + 0.5) / 2**63)
    return round(length * min(1.0, max(0.0, share)))
