"""Drafts tokens where vLLM's second model runner computes the steps.

There a step may be scheduled before the tokens of the one before it are known. So the scheduler
only says how many tokens are drafted. The runner drafts them, from a table on its device
(`draft_table`), when it has drawn the tokens of a step. `noise.SlotNoise` draws in their rows, and
vLLM's rejection sampler keeps those that are the drawn ones. A draft changes no token.

`CardDrafts` acts in the scheduler. It chooses which requests are drafted, and tells the runner the
owners of each one's text (`Source`). What acts in the runner is `table_speculator`.

All sequences of a step have equally many rows, for which there is a CUDA graph. The most that
there can be follows from the number of sequences (`scheduling.speculation.token_drafts`). Fewer
are computed where the rest is not worth its time, by how many drafts were right and how long steps
took so far. Ours. Checked with vLLM 0.32.0.
"""

from collections import OrderedDict, deque
from collections.abc import Sequence
from dataclasses import dataclass, replace
from hashlib import blake2b
from typing import Any

from vllm.v1.core.sched.output import SchedulerOutput
from vllm.v1.outputs import ModelRunnerOutput
from vllm.v1.request import Request

from flashedge.engine.vllm.inside.draft_table.naive import NO_OWNER
from flashedge.engine.vllm.inside.keys import read_args
from flashedge.engine.vllm.inside.token_drafts import (
    LAST_PROMPTS,
    MOST_OWNERS,
    find_new,
    find_owners,
    may_draft,
)
from flashedge.scheduling.speculation.step_costs import EXPLORE, StepCosts
from flashedge.scheduling.speculation.token_drafts import AcceptanceRates, Owner

SOURCES = "_flashedge_sources"
"""The attribute of a `SchedulerOutput` that holds the `Source` of each request that the runner
learns of in this step, by its id."""


@dataclass(frozen=True, slots=True)
class Source:
    """What the tokens of a request are drafted from."""

    owners: tuple[int, int]
    """Hashes of its program and of its client (NO_OWNER if that is not known)."""
    spans: tuple[tuple[int, int], ...]
    """The start and end of the tokens of the request's text that are counted now. Those of its
    client's earlier prompts and those that the runner drafted have been."""


class CardDrafts:
    def __init__(self, scheduler: Any) -> None:
        self._scheduler = scheduler
        self._is_on = scheduler.num_spec_tokens > 0 and not scheduler.has_mamba_layers
        self._rates = AcceptanceRates()  # the kind of a token is its place in the draft
        self._costs: StepCosts = scheduler.step_times.costs
        self._narrow = 0
        """Steps in a row with fewer drafted tokens than there can be."""
        self._prompts = OrderedDict[Owner, deque[list[int]]]()
        """The last prompts of each owner."""
        self._sources: dict[str, Source] = {}
        self._unsent: set[str] = set()
        self.counters = {
            "accepted_tokens": 0,  # drafted tokens that were drawn
            "cut_steps": 0,  # requests' steps that ended before the last token of an engine step
        }

    def add_request(self, requested: Request, request: Request) -> None:
        """Note where a request's tokens are drafted from. request: vLLM's request that computes it,
        which may be a draft of `speculation` that has tokens of its own."""
        args = read_args(requested.sampling_params)
        if not (self._is_on and may_draft(requested.sampling_params)):
            return
        owners = find_owners(requested)
        for owner in owners:
            self._prompts.setdefault(owner, deque(maxlen=LAST_PROMPTS))
            self._prompts.move_to_end(owner)
        while len(self._prompts) > MOST_OWNERS:
            self._prompts.popitem(last=False)
        # Of what the client has counted the program knows enough: either is looked up.
        *_, new = find_new(
            [self._prompts[owner] for owner in owners], args, list(requested.prompt_token_ids or ())
        )
        known = self._sources.get(request.request_id)
        drawn = (request.num_prompt_tokens, request.num_tokens)
        spans = ((new.start, new.stop), *(known.spans if known else (drawn,)))
        self._sources[request.request_id] = Source(
            owners=hash_owners(owners),
            spans=tuple((start, end) for start, end in spans if start < end),
        )
        self._unsent.add(request.request_id)

    def __contains__(self, request: Request) -> bool:
        """Whether a request's tokens may be drafted."""
        return request.request_id in self._sources

    # ------------------------------------------------------------ a step

    def drop_placeholders(self) -> None:
        """Leave the requests without drafts that may not have any. vLLM's rejection sampler does
        not compute the log-probabilities of given tokens."""
        if not self._is_on:
            return
        every = self._scheduler.requests.values()
        none = any(r.sampling_params and r.sampling_params.logprob_token_ids for r in every)
        for request in self._scheduler.running:
            if none or request not in self:
                request.spec_token_ids = []

    def complete_output(self, output: SchedulerOutput) -> None:
        """Tell the runner the sources of new requests and of those that have become another's, and
        how many tokens to draft for the next step."""
        if not self._is_on:
            output.num_spec_tokens_to_schedule = 0
            return
        output.num_spec_tokens_to_schedule = self._choose_width(
            len(output.num_scheduled_tokens), output.num_spec_tokens_to_schedule
        )
        new = {each.req_id for each in output.scheduled_new_reqs}
        told = {
            name: self._sources[name]
            for name in (new | self._unsent) & self._sources.keys()
            if name in output.num_scheduled_tokens
        }
        self._unsent -= told.keys()
        for name, source in told.items():
            self._sources[name] = replace(source, spans=())
        output.__dict__[SOURCES] = told

    def _choose_width(self, sequences: int, most: int) -> int:
        """Choose how many tokens are drafted of each sequence, at most `most`. None are where their
        KV would take blocks from requests."""
        pool = self._scheduler.kv_cache_manager.block_pool
        is_short = pool.get_num_free_blocks() < 2 * len(self._scheduler.running)
        if is_short or not (most and sequences):
            return 0
        if self._narrow >= EXPLORE:
            self._narrow = 0
            return most
        chance, chances = 1.0, list[float]()
        for place in range(most):
            chance *= self._rates.find(place)
            chances += [chance] * sequences
        worthy = self._costs.count_worthy(sequences, chances) // sequences
        width = most
        while width > worthy:
            width //= 2
        self._narrow = 0 if width == most else self._narrow + 1
        return width

    def begin_update(self, scheduled: SchedulerOutput, ran: ModelRunnerOutput) -> None:
        """Count drafted tokens before vLLM cuts those that a step has drawn."""
        if not self._is_on:
            return
        drafted = scheduled.scheduled_spec_decode_tokens
        for name, guesses in drafted.items():
            drawn = len(ran.sampled_token_ids[ran.req_id_to_index[name]])
            if drawn:
                self._rates.note(range(len(guesses)), drawn - 1)
                self.counters["accepted_tokens"] += drawn - 1
        open_requests = self._scheduler.requests
        if len(self._sources) > len(open_requests):
            kept = self._sources.items()
            self._sources = {name: source for name, source in kept if name in open_requests}
            self._unsent &= self._sources.keys()


def hash_owners(owners: Sequence[Owner]) -> tuple[int, int]:
    """Hash a text's program, and its client if that is known, to 63 bits each."""
    digests = [blake2b("\n".join(owner).encode(), digest_size=8).digest() for owner in owners]
    program, client, *_ = (*(int.from_bytes(digest) >> 1 or 1 for digest in digests), NO_OWNER)
    return program, client
