"""Block accounting of the simulated engine: nothing leaks, no bound is broken, all requests end."""

from collections import Counter
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    consumes,
    invariant,
    precondition,
    rule,
)

from flashedge.scheduling.speculation.token_drafts import DraftToken
from scripts.lab.sim.blocks import BlockCache, OutOfBlocks, chain
from scripts.lab.sim.scheduler import SequenceState, SimScheduler, SimSequence, Slice

QUICK = settings(
    max_examples=60,
    stateful_step_count=40,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)
TOTAL, SIZE = 12, 2


class BlockCacheMachine(RuleBasedStateMachine):
    """BlockCache against a model: reference counts, and a list of cached blocks, oldest first."""

    groups = Bundle("groups")  # blocks with one holder each, as a request has

    def __init__(self) -> None:
        super().__init__()
        self.cache = BlockCache(TOTAL, SIZE)
        self.refs: Counter[int] = Counter()
        self.keys: dict[int, int] = {}
        self.lru: list[int] = []

    def used(self) -> int:
        return sum(count > 0 for count in self.refs.values())

    def evict_to(self, bound: int) -> None:
        while self.lru and self.used() + len(self.lru) > bound:
            del self.keys[self.lru.pop(0)]

    @rule(target=groups, count=st.integers(0, 5))
    def take(self, count: int) -> list[int]:
        if self.used() + count > self.cache.quota:
            with pytest.raises(OutOfBlocks):
                self.cache.take(count)
            return []
        taken = self.cache.take(count)
        self.evict_to(self.cache.quota - count)
        assert len(set(taken)) == count
        assert all(0 <= block < TOTAL for block in taken)
        assert all(self.refs[block] == 0 and block not in self.keys for block in taken)
        self.refs.update(taken)
        return taken

    @rule(group=groups, index=st.integers(0, 4), key=st.integers(1, 8))
    def seal(self, group: list[int], index: int, key: int) -> None:
        if index >= len(group):
            return
        block = group[index]
        self.cache.seal(block, key)
        if block not in self.keys and key not in self.keys.values():
            self.keys[block] = key

    @rule(
        target=groups,
        keys=st.lists(st.integers(1, 8), max_size=3, unique=True),
        more=st.integers(0, 4),
    )
    def find(self, keys: list[int], more: int) -> list[int]:
        """A new request holds the blocks that it finds, if they fit."""
        found = self.cache.lookup(keys)
        blocks = {key: block for block, key in self.keys.items()}
        assert list(found) == [blocks[key] for key in keys[: len(found)]]
        assert len(found) == len(keys) or keys[len(found)] not in blocks
        unheld = sum(self.refs[block] == 0 for block in found)
        assert self.cache.fits(found, more) == (self.used() + unheld + more <= self.cache.quota)
        if not self.cache.fits(found, 0):
            return []
        self.cache.hold(found)
        self.refs.update(found)
        self.lru = [block for block in self.lru if block not in found]
        return list(found)

    @rule(group=consumes(groups))
    def release(self, group: list[int]) -> None:
        self.cache.release(group)
        for block in reversed(group):
            self.refs[block] -= 1
            if self.refs[block] == 0 and block in self.keys:
                self.lru.append(block)

    @rule(blocks=st.integers(0, TOTAL + 2))
    def set_quota(self, blocks: int) -> None:
        if self.used() > blocks:
            before = self.cache.quota
            with pytest.raises(AssertionError, match="too small"):
                self.cache.set_quota(blocks)
            assert self.cache.quota == before
            return
        self.cache.set_quota(blocks)
        assert self.cache.quota == min(blocks, TOTAL)
        self.evict_to(blocks)

    @invariant()
    def agrees_with_the_model(self) -> None:
        assert self.cache.used == self.used() <= self.cache.quota
        assert self.cache.cached == len(self.lru)
        assert self.cache.used + self.cache.cached <= self.cache.quota
        for block in range(TOTAL):
            assert self.cache._holders[block] == self.refs[block]
        for block, key in self.keys.items():
            assert self.cache.lookup([key]) == (block,)
        for key in range(1, 9):
            assert bool(self.cache.lookup([key])) == (key in self.keys.values())


class SchedulerMachine(RuleBasedStateMachine):
    """SimScheduler under requests, steps, cancels and quotas, compared with a shadow of what each
    block holds."""

    LONGEST, MAX_SEQS, BATCH = 14, 4, 7

    def __init__(self) -> None:
        super().__init__()
        self.cache = BlockCache(TOTAL, SIZE)
        limits = {"longest_tokens": self.LONGEST, "max_num_seqs": self.MAX_SEQS}
        self.scheduler = SimScheduler(self.cache, **limits, max_batched_tokens=self.BATCH)
        self.open: dict[int, SimSequence] = {}
        self.length: dict[int, int] = {}  # at which each request ends
        self.ended: set[int] = set()
        self.shadow: dict[tuple[int, int], tuple[int, ...]] = {}  # slot -> the path up to it
        self.batch: tuple[Slice, ...] = ()
        self.arrivals = 0
        self.adopters: set[int] = set()

    @rule(
        tokens=st.lists(st.integers(0, 1), min_size=1, max_size=LONGEST - 1),
        more=st.integers(1, 6),
        priority=st.integers(0, 2),
        reuse_tokens=st.none() | st.integers(0, 6),
        is_draft=st.booleans(),
    )
    def arrive(self, more: int, **fields: Any) -> None:
        self.enter(SimSequence(id=self.arrivals, **fields), len(fields["tokens"]) + more)

    def enter(self, sequence: SimSequence, ends_at: int) -> None:
        self.arrivals += 1
        self.open[sequence.id] = sequence
        self.length[sequence.id] = min(ends_at, self.LONGEST)
        self.scheduler.add(sequence)

    @precondition(lambda self: not self.batch)
    @rule(guesses=st.sampled_from(([], [0, 0, 1], [0] * 5, [1] * 5)))
    def begin_step(self, guesses: list[int]) -> None:
        for sequence in self.scheduler.running:
            if sequence.is_decoding:
                room = self.length[sequence.id] - len(sequence.tokens) - 1
                sequence.draft = [DraftToken(token, 0, 1.0) for token in guesses[: max(0, room)]]
        self.batch = self.scheduler.plan()
        if any(not sequence.is_draft for sequence in self.open.values()):
            assert self.batch
        assert sum(work.new for work in self.batch) <= self.BATCH
        assert all(work.new >= 1 for work in self.batch)
        assert len({work.sequence.id for work in self.batch}) == len(self.batch)
        for work in self.batch:
            for at in range(work.context, work.context + work.new):
                slot = (work.sequence.blocks[at // SIZE], at % SIZE)
                drafted = [guess.token for guess in work.sequence.draft]
                assert not drafted or work.new == 1 + len(drafted)
                self.shadow[slot] = tuple((work.sequence.tokens + drafted)[: at + 1])
            cached, reuse = work.sequence.cached, work.sequence.reuse_tokens
            assert cached is not None
            assert cached % SIZE == 0 or work.sequence.id in self.adopters
            assert cached < len(work.sequence.tokens)
            assert reuse is None or cached <= reuse

    @precondition(lambda self: self.batch)
    @rule(token=st.integers(0, 1))
    def end_step(self, token: int) -> None:
        for work in self.batch:
            guesses, work.sequence.draft = work.sequence.draft, []
            if self.scheduler.complete(work):
                work.sequence.append(token)
                for guess in guesses:
                    if guess.token != token:
                        break
                    self.scheduler.accept(work.sequence)
                    full, rest = divmod(work.sequence.computed, SIZE)
                    assert rest or self.cache.lookup([work.sequence.key(full - 1, SIZE)])
                    work.sequence.append(token)
                if len(work.sequence.tokens) >= self.length[work.sequence.id]:
                    self.finish(work.sequence)
        self.batch = ()

    @precondition(lambda self: self.open)
    @rule(data=st.data())
    def cancel(self, data: st.DataObject) -> None:
        """Also in the middle of a step."""
        self.finish(self.open[data.draw(st.sampled_from(sorted(self.open)))])

    @rule(blocks=st.integers(0, TOTAL + 2))
    def set_quota(self, blocks: int) -> None:
        granted = self.scheduler.set_quota(blocks)
        floor = self.cache.blocks_for(self.LONGEST)
        assert granted == self.cache.quota == max(floor, min(blocks, TOTAL))

    def one(self, data: st.DataObject, *states: SequenceState) -> SimSequence | None:
        found = [s for s in self.open.values() if s.is_draft and s.state in states]
        return data.draw(st.sampled_from(found)) if found else None

    @rule(data=st.data())
    def pause(self, data: st.DataObject) -> None:
        """Also in the middle of a step."""
        if sequence := self.one(data, SequenceState.RUNNING, SequenceState.WAITING):
            self.scheduler.pause(sequence)

    @rule(data=st.data())
    def resume(self, data: st.DataObject) -> None:
        if sequence := self.one(data, SequenceState.PAUSED):
            self.scheduler.resume(sequence)

    @rule(data=st.data())
    def adopt(self, data: st.DataObject) -> None:
        """A request adopts a draft: it keeps the KV."""
        if sequence := self.one(data, *SequenceState):
            adopter = SimSequence(id=self.arrivals, tokens=list(sequence.tokens))
            self.adopters.add(adopter.id)
            before = (list(sequence.blocks), sequence.computed)
            self.scheduler.transfer_kv(sequence, adopter)
            assert (adopter.blocks, adopter.computed) == before
            self.ended.add(sequence.id)
            del self.open[sequence.id]
            self.enter(adopter, self.length[sequence.id])

    def finish(self, sequence: SimSequence) -> None:
        assert sequence.id not in self.ended
        self.scheduler.remove(sequence)
        self.scheduler.remove(sequence)  # again: nothing happens
        self.ended.add(sequence.id)
        del self.open[sequence.id]

    @invariant()
    def blocks_add_up(self) -> None:
        queues = self.scheduler.running, self.scheduler.waiting, self.scheduler.paused
        running, waiting, paused = queues
        assert {s.id for s in (*running, *waiting, *paused)} == set(self.open)
        assert len(running) <= self.MAX_SEQS
        holders = Counter(block for s in (*running, *waiting, *paused) for block in s.blocks)
        assert self.cache.used == len(holders)
        assert self.cache.used + self.cache.cached <= self.cache.quota
        assert all(self.cache._holders[b] == count for b, count in holders.items())
        assert all(s.blocks or s.computed == 0 for s in (*waiting, *paused))
        assert all(s.state is SequenceState.RUNNING for s in running)
        assert all(s.state is SequenceState.PAUSED and s.is_draft for s in paused)
        for queue in queues:
            ranks = [(s.is_draft, s.priority if s.is_draft else 0, s.id) for s in queue]
            assert ranks == sorted(ranks)

    @invariant()
    def kv_matches_the_path(self) -> None:
        for sequence in self.open.values():
            assert sequence.computed < len(sequence.tokens)
            for at in range(sequence.computed):
                slot = (sequence.blocks[at // SIZE], at % SIZE)
                assert self.shadow[slot] == tuple(sequence.tokens[: at + 1])

    @invariant()
    def cached_blocks_are_full_and_right(self) -> None:
        for sequence in self.open.values():
            keys: list[int] = []
            for at in range(0, len(sequence.tokens) - SIZE + 1, SIZE):
                keys.append(chain(keys[-1] if keys else 0, sequence.tokens[at : at + SIZE]))
            assert sequence.keys == keys[: len(sequence.keys)]
            for i, block in enumerate(self.cache.lookup(keys)):
                for at in range(i * SIZE, (i + 1) * SIZE):
                    assert self.shadow[block, at % SIZE] == tuple(sequence.tokens[: at + 1])

    def teardown(self) -> None:
        for _ in range(2000):
            self.end_step(0)
            if all(sequence.is_draft for sequence in self.open.values()):
                break
            self.begin_step([])
            self.blocks_add_up()
        assert all(s.is_draft for s in self.open.values()), "a request never ended"
        for draft in tuple(self.open.values()):
            self.finish(draft)
        assert self.ended == set(range(self.arrivals))
        assert self.cache.used == 0


class TestBlockCache(BlockCacheMachine.TestCase):  # type: ignore[misc,name-defined]
    settings = QUICK


class TestScheduler(SchedulerMachine.TestCase):  # type: ignore[misc,name-defined]
    settings = QUICK


def test_drafted_tokens_that_do_not_fit_into_the_batch_are_not_computed() -> None:
    cache = BlockCache(TOTAL, SIZE)
    scheduler = SimScheduler(cache, longest_tokens=12, max_num_seqs=4, max_batched_tokens=7)
    pair = [SimSequence(id=i, tokens=[i, 0]) for i in range(2)]
    for sequence in pair:
        scheduler.add(sequence)
    for work in scheduler.plan():
        assert scheduler.complete(work)
        work.sequence.append(0)
        work.sequence.draft = [DraftToken(0, 0, 1.0)] * 4
    assert [work.new for work in scheduler.plan()] == [5, 2]
    assert [len(sequence.draft) for sequence in pair] == [4, 1]


def test_the_deepest_block_of_the_oldest_path_goes_first() -> None:
    cache = BlockCache(4, SIZE)
    first, second = cache.take(2), cache.take(2)
    for key, block in enumerate(first + second):
        cache.seal(block, key)
    cache.release(first)
    cache.release(second)
    assert [cache.take(1)[0] for _ in range(4)] == [first[1], first[0], second[1], second[0]]
