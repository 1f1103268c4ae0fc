"""KV blocks of a simulated engine: paged, counted, reused by prefix, evicted in LRU order.

A block holds the keys and values of `block_tokens` consecutive tokens. It is in one of three
states: *held* by one or more requests, *cached* (no holder, but its content is still found by hash)
or *blank*. The quota limits held + cached; the rest is memory given away.
"""

from collections import Counter, OrderedDict
from collections.abc import Iterable, Sequence


class OutOfBlocks(Exception):
    """The quota leaves no block to allocate. The scheduler handles it inside the engine."""


def chain(previous: int, token_ids: Sequence[int]) -> int:
    """Key of a full block: a hash of its tokens and of everything before them."""
    return hash((previous, *token_ids))


class BlockCache:
    """The blocks of one engine."""

    def __init__(self, total: int, block_tokens: int) -> None:
        self.total = total
        self.block_tokens = block_tokens
        self.quota = total
        self._holders: Counter[int] = Counter()
        """How many requests hold each block."""
        self._keys: dict[int, int] = {}
        """Keys of the blocks that are found by one, held or cached. `_by_key` is the inverse."""
        self._by_key: dict[int, int] = {}
        self._cached: OrderedDict[int, None] = OrderedDict()  # oldest first
        self._untouched = 0  # blocks from here on were never taken
        self._emptied: list[int] = []  # blank ones that were taken before; the last is taken next

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
        unheld = sum(block in self._cached for block in found)
        return self.used + unheld + new <= self.quota

    def lookup(self, keys: Iterable[int]) -> tuple[int, ...]:
        """Blocks of the longest cached prefix of `keys`."""
        found: list[int] = []
        for key in keys:
            if key not in self._by_key:
                break
            found.append(self._by_key[key])
        return tuple(found)

    def hold(self, blocks: Iterable[int]) -> None:
        """Add a holder to blocks found by `lookup`."""
        for block in blocks:
            self._cached.pop(block, None)
            self._holders[block] += 1

    def take(self, count: int) -> list[int]:
        """Allocate `count` blocks with one holder each, evicting the oldest cached ones as needed.
        Raises OutOfBlocks, allocating none."""
        if self.used + count > self.quota:
            raise OutOfBlocks(f"{count} blocks requested, {self.quota - self.used} left")
        self._evict_to(self.quota - count)
        taken = [self._pop_blank() for _ in range(count)]
        self._holders.update(taken)
        return taken

    def seal(self, block: int, key: int) -> None:
        """Let lookups find a full block by `key`. A key keeps the first block sealed with it."""
        assert self._holders[block], f"block {block} is held by nobody and can't be sealed"
        if block not in self._keys and key not in self._by_key:
            self._keys[block] = key
            self._by_key[key] = block

    def release(self, blocks: Sequence[int]) -> None:
        """Remove a holder. Of a path's blocks, the deepest is evicted first."""
        for block in reversed(blocks):
            assert self._holders[block], f"nobody holds block {block} that is released"
            self._holders[block] -= 1
            if self._holders[block]:
                continue
            if block in self._keys:
                self._cached[block] = None
            else:
                self._emptied.append(block)

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

    def _pop_blank(self) -> int:
        if self._emptied:
            return self._emptied.pop()
        self._untouched += 1
        return self._untouched - 1

    def _evict_to(self, bound: int) -> None:
        """Evict cached blocks, oldest first, until held + cached <= bound."""
        while self._cached and self.used + len(self._cached) > bound:
            block, _ = self._cached.popitem(last=False)
            del self._by_key[self._keys.pop(block)]
            self._emptied.append(block)
