"""Which requests run in a step of a simulated engine, and on which blocks. Pure: no clock.

The rules are those of vLLM V1: running requests first, then waiting ones, each as many tokens as
the batch has room for (chunked prefill); when blocks run out, the request that would run last is
preempted and later computed again, its prefix re-used where it is still cached.

Speculative sequences (arXiv 2509.00195 §4.1.2) come after all others. One that is *held* takes no
place in the batch and keeps its KV until somebody else needs the blocks.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import NamedTuple

from flashedge.engine.sim.blocks import BlockCache, chain


class SequenceState(StrEnum):
    WAITING = "waiting"
    RUNNING = "running"
    HELD = "held"
    DONE = "done"


_S = SequenceState
_NEXT: Mapping[SequenceState, frozenset[SequenceState]] = {
    _S.WAITING: frozenset({_S.RUNNING, _S.HELD, _S.DONE}),
    _S.RUNNING: frozenset({_S.WAITING, _S.HELD, _S.DONE}),
    _S.HELD: frozenset({_S.WAITING, _S.DONE}),
    _S.DONE: frozenset(),
}


@dataclass(slots=True, eq=False, kw_only=True)
class Sequence:
    """The tokens of one request and where their KV is.

    tokens[:computed] have KV in `blocks`; reuse_tokens: at most so many of them may come from the
    cache (None: all but the last); cached: how many did at the first admission (None before);
    speculative: nobody asked for it yet.
    """

    id: int
    tokens: list[int]
    priority: int = 0
    speculative: bool = False
    reuse_tokens: int | None = None
    state: SequenceState = SequenceState.WAITING
    computed: int = 0
    cached: int | None = None
    blocks: list[int] = field(default_factory=list)
    keys: list[int] = field(default_factory=list)

    def move(self, to: SequenceState) -> None:
        """Raises ValueError on an illegal move, changing nothing."""
        if to not in _NEXT[self.state]:
            raise ValueError(f"sequence {self.id}: {self.state} -> {to} is not a legal move")
        self.state = to

    def key(self, index: int, block_tokens: int) -> int:
        """Chain hash of whole block `index`."""
        while len(self.keys) <= index:
            at = len(self.keys) * block_tokens
            previous = self.keys[-1] if self.keys else 0
            self.keys.append(chain(previous, self.tokens[at : at + block_tokens]))
        return self.keys[index]


class Slice(NamedTuple):
    """`new` tokens of a sequence, to be computed after `context` tokens of KV."""

    sequence: Sequence
    context: int
    new: int


class SimScheduler:
    """Holds every request that is not over.

    longest_tokens: no sequence grows beyond it; max_num_seqs: that one step may hold, at most.
    by_priority: lower `priority` first, else FCFS.
    """

    def __init__(
        self,
        cache: BlockCache,
        *,
        longest_tokens: int,
        max_num_seqs: int,
        max_batched_tokens: int,
        by_priority: bool = False,
    ) -> None:
        self.cache = cache
        self.running: list[Sequence] = []  # in order of `_rank`, like `waiting`
        self.waiting: list[Sequence] = []
        self.held: list[Sequence] = []
        self.preemptions = 0
        self._floor = cache.blocks_for(longest_tokens)
        self.max_num_seqs = max_num_seqs
        self._max_batched_tokens = max_batched_tokens
        self._by_priority = by_priority

    # ------------------------------------------------------------ requests come and go

    def add(self, sequence: Sequence) -> None:
        insort(self.waiting, sequence, key=self._rank)

    def hold(self, sequence: Sequence) -> None:
        """Take a speculative sequence out of the batch, or let a new one begin so."""
        self._leave(sequence)
        sequence.move(_S.HELD)
        insort(self.held, sequence, key=self._rank)

    def resume(self, sequence: Sequence) -> None:
        """Put a held sequence back in line."""
        self._leave(sequence)
        sequence.move(_S.WAITING)
        self.add(sequence)

    def take_over(self, heir: Sequence, sequence: Sequence) -> None:
        """`heir`, whose tokens begin like those of `sequence`, gets its KV; `sequence` is over."""
        heir.blocks, sequence.blocks = sequence.blocks, []
        heir.computed, heir.keys = sequence.computed, sequence.keys
        self.remove(sequence)

    def remove(self, sequence: Sequence) -> None:
        """Finished or cancelled: its blocks are free at once. Removing it again does nothing."""
        if sequence.state is _S.DONE:
            return
        self._leave(sequence)
        self._free(sequence)
        sequence.move(_S.DONE)

    @property
    def spare_blocks(self) -> int:
        """Blocks that nothing holds."""
        return self.cache.quota - self.cache.used

    def set_quota(self, blocks: int) -> int:
        """Bound the blocks in use, preempting as needed. Returns the quota granted: one request
        of full length always fits, so that the first in line is sure to finish."""
        quota = max(self._floor, min(blocks, self.cache.total))
        while self.cache.used > quota:
            self._give_way()
        self.cache.set_quota(quota)
        return quota

    def drop_kv(self) -> None:
        """Forget all KV: who runs begins again, no prefix is found."""
        for sequence in tuple(self.running):
            if sequence.speculative:
                self.hold(sequence)
            else:
                self._preempt(sequence)
        while self._reclaim():
            pass
        self.cache.clear()

    # ------------------------------------------------------------ one step

    def plan(self) -> tuple[Slice, ...]:
        """Choose the next batch and allocate its blocks. Empty: no request is there."""
        batch: list[Slice] = []
        room = self._max_batched_tokens
        preempted = False
        at = 0
        while at < len(self.running) and room > 0:
            sequence = self.running[at]
            new = min(len(sequence.tokens) - sequence.computed, room)
            if self._blocks_needed(sequence, new):
                preempted |= self._make_room(sequence, new)
                if sequence.state is not _S.RUNNING:
                    continue  # it was the last and had to go itself
            batch.append(self._schedule(sequence, new))
            room, at = room - new, at + 1
        if not preempted:
            self._admit(batch, room)
        return tuple(batch)

    def complete(self, work: Slice) -> bool:
        """The slice is computed. True when all KV of the sequence is there, so that its next
        token can be drawn; False also when it was preempted or removed meanwhile."""
        sequence = work.sequence
        if sequence.state is not _S.RUNNING:
            return False
        sequence.computed += work.new
        return sequence.computed == len(sequence.tokens)

    # ------------------------------------------------------------ inner

    def _rank(self, sequence: Sequence) -> tuple[bool, int, int]:
        ordered = self._by_priority or sequence.speculative
        return (sequence.speculative, sequence.priority if ordered else 0, sequence.id)

    def _leave(self, sequence: Sequence) -> None:
        """Out of the list that it is in, if it is in one."""
        at = {_S.RUNNING: self.running, _S.WAITING: self.waiting, _S.HELD: self.held}
        if sequence in at[sequence.state]:
            at[sequence.state].remove(sequence)

    def _admit(self, batch: list[Slice], room: int) -> None:
        for sequence in tuple(self.waiting):
            if room <= 0 or len(self.running) >= self.max_num_seqs:
                return
            new = self._enter(sequence, room)
            if new is None:
                return
            self.waiting.remove(sequence)
            sequence.move(_S.RUNNING)
            insort(self.running, sequence, key=self._rank)
            batch.append(self._schedule(sequence, new))
            room -= new

    def _enter(self, sequence: Sequence, room: int) -> int | None:
        """Hold what KV there is of it; the tokens to compute now, None when they don't fit."""
        while True:
            found = () if sequence.blocks else self._find(sequence)
            have = sequence.computed if sequence.blocks else len(found) * self.cache.block_tokens
            new = min(len(sequence.tokens) - have, room)
            held = len(found) + len(sequence.blocks)
            if self.cache.fits(found, self.cache.blocks_for(have + new) - held):
                break
            if sequence.speculative or not self._reclaim(sequence):
                return None
        self.cache.hold(found)
        sequence.blocks += found
        sequence.computed = have
        if sequence.cached is None:
            sequence.cached = have
        return new

    def _find(self, sequence: Sequence) -> tuple[int, ...]:
        """Whole cached blocks of the prefix; never the last token, whose output is needed."""
        most = len(sequence.tokens) - 1
        if sequence.reuse_tokens is not None:
            most = min(most, sequence.reuse_tokens)
        size = self.cache.block_tokens
        return self.cache.lookup(sequence.key(i, size) for i in range(most // size))

    def _make_room(self, sequence: Sequence, new: int) -> bool:
        """Have others give way until `new` tokens of `sequence` fit, or itself. True if any was
        preempted."""
        preempted = False
        while sequence.state is _S.RUNNING and not self.cache.fits(
            (), self._blocks_needed(sequence, new)
        ):
            if sequence.speculative:
                self.hold(sequence)
            else:
                preempted |= self._give_way()
        return preempted

    def _give_way(self) -> bool:
        """Free the blocks of one who does not run, else push out the last that does: a speculative
        one keeps its blocks for now. True if a standard one was preempted."""
        if self._reclaim():
            return False
        last = self.running[-1]
        if last.speculative:
            self.hold(last)
            return False
        self._preempt(last)
        return True

    def _reclaim(self, spared: Sequence | None = None) -> bool:
        """Free the KV of the last sequence that has some and does not run, if there is one."""
        idle = [s for s in (*self.held, *self.waiting) if s.blocks and s is not spared]
        if idle:
            self._free(max(idle, key=self._rank))
        return bool(idle)

    def _schedule(self, sequence: Sequence, new: int) -> Slice:
        """Allocate, and make the blocks that this step fills known to the requests that follow."""
        if needed := self._blocks_needed(sequence, new):
            sequence.blocks += self.cache.take(needed)
        size = self.cache.block_tokens
        for i in range(sequence.computed // size, (sequence.computed + new) // size):
            self.cache.seal(sequence.blocks[i], sequence.key(i, size))
        return Slice(sequence, sequence.computed, new)

    def _blocks_needed(self, sequence: Sequence, new: int) -> int:
        return self.cache.blocks_for(sequence.computed + new) - len(sequence.blocks)

    def _preempt(self, sequence: Sequence) -> None:
        self.running.remove(sequence)
        self._free(sequence)
        sequence.move(_S.WAITING)
        self.preemptions += 1
        insort(self.waiting, sequence, key=self._rank)

    def _free(self, sequence: Sequence) -> None:
        self.cache.release(sequence.blocks)
        sequence.blocks, sequence.computed = [], 0
