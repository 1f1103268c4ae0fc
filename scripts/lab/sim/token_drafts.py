"""Drafts tokens of the simulated generator's requests, as `engine/vllm/inside/token_drafts.py` does
in vLLM's scheduler: by the same rules and the same code, with the simulated time of the steps.

Only where the model writes real texts: made-up words repeat by chance alone. The lookup itself
takes no simulated time.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence

from flashedge.engine.base import ExtendRequest
from flashedge.scheduling.speculation.step_costs import StepCosts, count_step, cut_drafts
from flashedge.scheduling.speculation.token_drafts import (
    MOST_TOKENS,
    AcceptanceRates,
    DraftToken,
    Owner,
    TextIndex,
    draft,
    list_owners,
)
from scripts.lab.sim.engine_loop import Job
from scripts.lab.sim.scheduler import SequenceState, SimScheduler, SimSequence, Slice
from scripts.lab.sim.writing_job import WritingJob


class TokenDrafts:
    def __init__(self, scheduler: SimScheduler, jobs: Mapping[int, Job], costs: StepCosts) -> None:
        """jobs: the engine's, by sequence. costs: of its steps."""
        self._scheduler, self._jobs, self._costs = scheduler, jobs, costs
        self._texts = defaultdict[Owner, TextIndex](TextIndex)
        self._rates = AcceptanceRates()
        self.counters = {"drafted_tokens": 0, "accepted_tokens": 0, "drafted_steps": 0}
        """As in `engine/vllm/inside/token_drafts.py`."""

    def add_request(self, request: ExtendRequest, sequence: SimSequence) -> None:
        """Let the tokens of a request be drafted. sequence: with the tokens of an adopted draft."""
        owners = list_owners(request.program or f"request-{sequence.id}", request.client)
        is_first = owners[0] not in self._texts
        indices = [self._texts[owner] for owner in owners]
        if is_first:  # later paths were counted when drawn
            for index in indices:
                index.add(request.token_ids)
        if not sequence.indices:
            sequence.indices, sequence.counted = indices, len(request.token_ids)

    def propose(self) -> None:
        """Draft tokens before a step is planned."""
        running = self._scheduler.running
        for job in self._jobs.values():
            job.sequence.draft = []
        if self._scheduler.waiting or self._scheduler.spare_blocks < 2 * len(running):
            return
        known = [s for s in running if s.indices and s.is_decoding]
        least_chance = self._costs.find_least_chance(len(running))
        if not known or least_chance >= 1:
            return
        drafts = [self._draft(sequence, least_chance) for sequence in known]
        room = self._scheduler.max_num_seqs - len(running)
        chances = [[guess.chance for guess in found] for found in drafts]
        counts = cut_drafts(self._costs, len(running), room, chances)
        for sequence, found, count in zip(known, drafts, counts, strict=True):
            sequence.draft = found[:count]

    def _draft(self, sequence: SimSequence, least_chance: float) -> list[DraftToken]:
        job = self._jobs[sequence.id]
        assert isinstance(job, WritingJob), "it has an index"
        return draft(
            sequence.indices,
            sequence.tokens,
            most=min(MOST_TOKENS, job.room - 1),  # a token is drawn after the draft
            least_chance=least_chance,
            rates=self._rates,
            ends=job.ends_step,
        )

    def note_step(self, batch: Sequence[Slice], took_s: float) -> None:
        count_step(
            self.counters,
            self._costs,
            sequences=len(batch),
            drafted=sum(len(work.sequence.draft) for work in batch),
            computed=sum(work.new for work in batch),
            seconds=took_s,
        )

    def advance(self, job: Job) -> bool:
        """Let a job draw its tokens of a step: one, and one more behind each drafted token that was
        drawn. True when it is done."""
        sequence = job.sequence
        guesses, sequence.draft = sequence.draft, []
        done, right = job.advance(), 0
        for guess in guesses:
            is_open = not done and sequence.state is SequenceState.RUNNING
            if not is_open or sequence.tokens[-1] != guess.token:
                break
            self._scheduler.accept(sequence)
            right += 1
            done = job.advance()
        if guesses:
            self._rates.note([guess.kind for guess in guesses], right)
            self.counters["accepted_tokens"] += right
        return done
