"""KV blocks of a simulated engine: paged, counted, reused by prefix, evicted in LRU order.

A block holds the keys and values of `block_tokens` consecutive tokens. It is in one of three
states: *held* by one or more requests (`refs > 0`), *cached* (no holder, but its content is still
found by hash) or *blank*. The quota limits held + cached; the rest is memory given away.
"""

from __future__ import annotations

from collections import OrderedDict, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass


class OutOfBlocks(Exception):
    """The quota leaves no block to allocate. The scheduler handles it inside the engine."""


@dataclass(slots=True)
class _Block:
    refs: int = 0
    key: int | None = None  # chain hash of the content, once the block is full


def chain(previous: int, token_ids: Sequence[int]) -> int:
    """Key of a full block: a hash of its tokens and of everything before them."""
    return hash((previous, *token_ids))


class BlockCache:
    """The blocks of one engine."""

    def __init__(self, total: int, block_tokens: int) -> None:
        self.total = total
        self.block_tokens = block_tokens
        self.quota = total
        # A small model has millions of blocks, of which a run touches few: those are made on use.
        self._blocks: defaultdict[int, _Block] = defaultdict(_Block)
        self._untouched = 0  # blocks from here on were never taken
        self._emptied: list[int] = []  # blank ones that were taken before; the last is taken next
        self._cached: OrderedDict[int, None] = OrderedDict()  # oldest first
        self._by_key: dict[int, int] = {}

    # ------------------------------------------------------------ counting

    @property
    def used(self) -> int:
        """Blocks that requests hold."""
        return self._untouched - len(self._emptied) - len(self._cached)

    @property
    def cached(self) -> int:
        return len(self._cached)

    def blocks_for(self, num_tokens: int) -> int:
        return -(-num_tokens // self.block_tokens)

    def fits(self, found: Sequence[int], new: int) -> bool:
        """Whether the quota allows holding the blocks `found` and `new` more."""
        unheld = sum(self._blocks[b].refs == 0 for b in found)
        return self.used + unheld + new <= self.quota

    # ------------------------------------------------------------ allocation

    def lookup(self, keys: Iterable[int]) -> tuple[int, ...]:
        """Blocks of the longest cached prefix of `keys`."""
        found: list[int] = []
        for key in keys:
            block = self._by_key.get(key)
            if block is None:
                break
            found.append(block)
        return tuple(found)

    def hold(self, blocks: Iterable[int]) -> None:
        """Add a holder to blocks found by `lookup`."""
        for block in blocks:
            if self._blocks[block].refs == 0:
                del self._cached[block]
            self._blocks[block].refs += 1

    def take(self, count: int) -> list[int]:
        """Allocate `count` blocks with one holder each, evicting the oldest cached ones as needed.
        Raises OutOfBlocks, allocating none."""
        if self.used + count > self.quota:
            raise OutOfBlocks(f"{count} blocks requested, {self.quota - self.used} left")
        self._evict_to(self.quota - count)
        taken = [self._pop_blank() for _ in range(count)]
        for block in taken:
            self._blocks[block].refs = 1
        return taken

    def seal(self, block: int, key: int) -> None:
        """Let lookups find a full block by `key`. A key keeps the first block sealed with it."""
        assert self._blocks[block].refs, f"block {block} is held by nobody and can't be sealed"
        if self._blocks[block].key is None and key not in self._by_key:
            self._blocks[block].key = key
            self._by_key[key] = block

    def release(self, blocks: Sequence[int]) -> None:
        """Remove a holder. Of a path's blocks, the deepest is evicted first."""
        for block in reversed(blocks):
            assert self._blocks[block].refs, f"nobody holds block {block} that is released"
            self._blocks[block].refs -= 1
            if self._blocks[block].refs:
                continue
            if self._blocks[block].key is None:
                self._emptied.append(block)
            else:
                self._cached[block] = None

    def set_quota(self, blocks: int) -> None:
        """Limit held + cached. Held blocks must fit; cached ones are evicted."""
        blocks = min(blocks, self.total)
        assert self.used <= blocks, f"{self.used} blocks are held; a quota of {blocks} is too small"
        self.quota = blocks
        self._evict_to(blocks)

    def clear(self) -> None:
        """Forget every cached block (the engine died). None may be held."""
        assert not self.used, f"{self.used} blocks are still held"
        self._evict_to(0)

    # ------------------------------------------------------------ inner

    def _pop_blank(self) -> int:
        if self._emptied:
            return self._emptied.pop()
        self._untouched += 1
        return self._untouched - 1

    def _evict_to(self, bound: int) -> None:
        """Evict cached blocks, oldest first, until held + cached <= bound."""
        while self._cached and self.used + len(self._cached) > bound:
            block, _ = self._cached.popitem(last=False)
            key = self._blocks[block].key
            assert key is not None
            del self._by_key[key]
            self._blocks[block].key = None
            self._emptied.append(block)
