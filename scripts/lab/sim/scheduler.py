"""Which requests run in a step of a simulated engine, and on which blocks. Pure: no clock.

The rules are those of vLLM V1. Running requests go first, then waiting ones, each with as many
tokens as the batch has room for (chunked prefill). When blocks run out, the request that would run
last is preempted and computed again later; its prefix is reused where it is still cached.

Drafts (arXiv 2509.00195 §4.1.2) come after all other requests.
"""

from bisect import insort
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import NamedTuple

from flashedge.scheduling.speculation.token_drafts import DraftToken, TextIndex
from scripts.lab.sim.blocks import BlockCache, chain


class SequenceState(StrEnum):
    WAITING = "waiting"
    """In line for the batch."""
    RUNNING = "running"
    """In the batch."""
    PAUSED = "paused"
    """A draft that takes no slot and keeps its KV until others need the blocks."""
    DONE = "done"
    """Finished, cancelled or dropped, for good."""


_S = SequenceState


@dataclass(slots=True, eq=False, kw_only=True)
class SimSequence:
    """The tokens of one request, and where their KV is."""

    id: int
    tokens: list[int]
    priority: float = 0
    """Of a draft: the lowest runs first."""
    program: str | None = None
    is_draft: bool = False
    reuse_tokens: int | None = None
    """Most tokens whose KV may come from the cache. None: all but the last."""
    state: SequenceState = SequenceState.WAITING
    computed: int = 0
    """`tokens[:computed]` have KV in `blocks`."""
    cached: int | None = None
    """Tokens whose KV came from the cache when the sequence first ran. None before that."""
    blocks: list[int] = field(default_factory=list)
    keys: list[int] = field(default_factory=list)
    """Chain hashes of the first whole blocks, computed on demand."""
    indices: Sequence[TextIndex] = ()
    """What its tokens are drafted from. Empty if they are not."""
    counted: int = 0
    """`tokens[:counted]` are in the indices."""
    draft: list[DraftToken] = field(default_factory=list)
    """Tokens that may come next. The next step computes their rows as well."""

    def append(self, token: int) -> None:
        self.tokens.append(token)
        for index in self.indices:
            index.add(self.tokens, self.counted)
        self.counted = len(self.tokens)

    @property
    def is_decoding(self) -> bool:
        """Whether the next step draws a token, and computes no other row but those of `draft`."""
        return self.state is SequenceState.RUNNING and self.computed == len(self.tokens) - 1

    def key(self, index: int, block_tokens: int) -> int:
        """Chain hash of whole block `index`."""
        while len(self.keys) <= index:
            at = len(self.keys) * block_tokens
            previous = self.keys[-1] if self.keys else 0
            self.keys.append(chain(previous, self.tokens[at : at + block_tokens]))
        return self.keys[index]


class Slice(NamedTuple):
    """A sequence's part of one step: `new` tokens, drafted ones too, computed behind `context`
    tokens of KV."""

    sequence: SimSequence
    context: int
    new: int


class SimScheduler:
    """Holds every request that is not done."""

    def __init__(
        self, cache: BlockCache, *, longest_tokens: int, max_num_seqs: int, max_batched_tokens: int
    ) -> None:
        """longest_tokens: no sequence grows beyond it; max_num_seqs: most sequences in one step."""
        self.cache = cache
        self.running: list[SimSequence] = []  # by `_rank`, `waiting` by `_rank_waiting`
        self.waiting: list[SimSequence] = []
        self.paused: list[SimSequence] = []
        self.preemptions = 0
        self._floor = cache.blocks_for(longest_tokens)
        self.max_num_seqs = max_num_seqs
        self._max_batched_tokens = max_batched_tokens
        self._places: dict[str | None, int] = {}

    def add(self, sequence: SimSequence) -> None:
        sequence.state = _S.WAITING
        sequence.draft = []  # only what decodes has one
        insort(self.waiting, sequence, key=self._rank_waiting)

    def pause(self, draft: SimSequence) -> None:
        """Take a draft out of the batch, or let a new one start paused."""
        self._leave_queue(draft)
        draft.state = _S.PAUSED
        insort(self.paused, draft, key=self._rank)

    def resume(self, draft: SimSequence) -> None:
        self._leave_queue(draft)
        self.add(draft)

    def transfer_kv(self, source: SimSequence, target: SimSequence) -> None:
        """Give the KV of `source` to `target`, whose tokens begin alike. `source` is done."""
        target.blocks, source.blocks = source.blocks, []
        target.computed, target.keys = source.computed, source.keys
        target.indices, target.counted = source.indices, source.counted
        self.remove(source)

    def remove(self, sequence: SimSequence) -> None:
        """Drop a finished or cancelled request and free its blocks."""
        if sequence.state is _S.DONE:
            return
        self._leave_queue(sequence)
        self._free(sequence)
        sequence.state = _S.DONE

    @property
    def spare_blocks(self) -> int:
        return self.cache.quota - self.cache.used

    def set_quota(self, blocks: int) -> int:
        """Limit the blocks in use, preempting as needed. Returns the quota granted, which is never
        too small for one request of full length, so that the first in line can finish."""
        quota = max(self._floor, min(blocks, self.cache.total))
        while self.cache.used > quota:
            self._free_more()
        self.cache.set_quota(quota)
        return quota

    def drop_kv(self) -> None:
        """Forget all KV: running requests start again, and no prefix is cached."""
        for sequence in tuple(self.running):
            self._stop(sequence)
        while self._reclaim_idle():
            pass
        self.cache.clear()

    def rank_programs(self, keys: Sequence[str]) -> None:
        """Sort waiting requests by their programs now, and as they arrive. What runs goes on."""
        self._places = {key: place for place, key in enumerate(keys)}
        self.waiting.sort(key=self._rank_waiting)

    def plan(self) -> tuple[Slice, ...]:
        """Choose the next batch and allocate its blocks. Empty when there is no request."""
        batch: list[Slice] = []
        room, at, before = self._max_batched_tokens, 0, self.preemptions
        while at < len(self.running) and room > 0:
            sequence = self.running[at]
            known = len(sequence.tokens) - sequence.computed
            new = min(known + len(sequence.draft), room)
            del sequence.draft[max(0, new - known) :]
            self._make_room(sequence, new)
            if sequence.state is not _S.RUNNING:
                continue  # it was the last one, so it was preempted itself
            batch.append(self._schedule(sequence, new))
            room, at = room - new, at + 1
        if self.preemptions == before:
            self._admit(batch, room)
        return tuple(batch)

    def complete(self, work: Slice) -> bool:
        """Record that the slice is computed. True when the sequence has all of its KV, so that its
        next token can be drawn; False also when it was preempted or removed meanwhile."""
        sequence = work.sequence
        if sequence.state is not _S.RUNNING:
            return False
        sequence.computed = min(sequence.computed + work.new, len(sequence.tokens))
        return sequence.computed == len(sequence.tokens)

    def accept(self, sequence: SimSequence) -> None:
        """Record that the last token's KV is computed: it was drafted."""
        self._seal(sequence, sequence.computed + 1)
        sequence.computed += 1

    def _rank(self, sequence: SimSequence) -> tuple[bool, float, int]:
        """The first to arrive runs first, and drafts after all others by their priority."""
        return (sequence.is_draft, sequence.priority if sequence.is_draft else 0, sequence.id)

    def _rank_waiting(self, sequence: SimSequence) -> tuple[bool, int, float, int]:
        """By program, then like those that run. Drafts stay behind all others."""
        is_draft, priority, number = self._rank(sequence)
        place = self._places.get(sequence.program, len(self._places))
        return (is_draft, place, priority, number)

    def _leave_queue(self, sequence: SimSequence) -> None:
        queues = {_S.RUNNING: self.running, _S.WAITING: self.waiting, _S.PAUSED: self.paused}
        if sequence in queues[sequence.state]:  # a new one may be in none
            queues[sequence.state].remove(sequence)

    def _admit(self, batch: list[Slice], room: int) -> None:
        for sequence in tuple(self.waiting):
            if room <= 0 or len(self.running) >= self.max_num_seqs:
                return
            new = self._enter(sequence, room)
            if new is None:
                return
            self.waiting.remove(sequence)
            sequence.state = _S.RUNNING
            insort(self.running, sequence, key=self._rank)
            batch.append(self._schedule(sequence, new))
            room -= new

    def _enter(self, sequence: SimSequence, room: int) -> int | None:
        """Take the sequence's cached KV. Returns the tokens to compute now, None if they don't
        fit."""
        while True:
            found = () if sequence.blocks else self._find_cached(sequence)
            have = sequence.computed if sequence.blocks else len(found) * self.cache.block_tokens
            new = min(len(sequence.tokens) - have, room)
            held = len(found) + len(sequence.blocks)
            if self.cache.fits(found, self.cache.blocks_for(have + new) - held):
                break
            if sequence.is_draft or not self._reclaim_idle(sequence):
                return None
        self.cache.hold(found)
        sequence.blocks += found
        sequence.computed = have
        if sequence.cached is None:
            sequence.cached = have
        return new

    def _find_cached(self, sequence: SimSequence) -> tuple[int, ...]:
        """Whole cached blocks of the prefix, without the last token, whose output is needed."""
        most = len(sequence.tokens) - 1
        if sequence.reuse_tokens is not None:
            most = min(most, sequence.reuse_tokens)
        size = self.cache.block_tokens
        return self.cache.lookup(sequence.key(i, size) for i in range(most // size))

    def _make_room(self, sequence: SimSequence, new: int) -> None:
        """Free blocks until `new` tokens of `sequence` fit or it had to leave itself."""
        needed = self._count_missing(sequence, new)
        while needed and sequence.state is _S.RUNNING and not self.cache.fits((), needed):
            if sequence.is_draft:
                self.pause(sequence)
            else:
                self._free_more()

    def _free_more(self) -> None:
        """Free the blocks of an idle sequence, else take the last running one out of the batch."""
        if not self._reclaim_idle():
            self._stop(self.running[-1])

    def _stop(self, sequence: SimSequence) -> None:
        """Take a sequence out of the batch. A draft keeps its blocks for now."""
        if sequence.is_draft:
            self.pause(sequence)
            return
        self.running.remove(sequence)
        self._free(sequence)
        self.preemptions += 1
        self.add(sequence)

    def _reclaim_idle(self, spared: SimSequence | None = None) -> bool:
        """Free the KV of the last sequence that does not run and has some. False if none has."""
        idle = [s for s in (*self.paused, *self.waiting) if s.blocks and s is not spared]
        if idle:
            self._free(max(idle, key=self._rank))
        return bool(idle)

    def _schedule(self, sequence: SimSequence, new: int) -> Slice:
        """Allocate blocks, and let later requests find those that this step fills."""
        if needed := self._count_missing(sequence, new):
            sequence.blocks += self.cache.take(needed)
        self._seal(sequence, min(sequence.computed + new, len(sequence.tokens)))
        return Slice(sequence, sequence.computed, new)

    def _seal(self, sequence: SimSequence, end: int) -> None:
        """Let lookups find the blocks that are filled when `tokens[:end]` have KV."""
        size = self.cache.block_tokens
        for i in range(sequence.computed // size, end // size):
            self.cache.seal(sequence.blocks[i], sequence.key(i, size))

    def _count_missing(self, sequence: SimSequence, new: int) -> int:
        """A sequence whose drafted tokens were not drawn may have a block more than it needs."""
        return max(0, self.cache.blocks_for(sequence.computed + new) - len(sequence.blocks))

    def _free(self, sequence: SimSequence) -> None:
        self.cache.release(sequence.blocks)
        sequence.blocks, sequence.computed = [], 0
