"""What an order of paths costs a KV cache: blocks touched, computed and evicted.

A path is the sequence of its blocks' contents. As in a radix tree, two paths share a block if they
are equal up to its end. Ref: arXiv 2509.00195 §4.2.
"""

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from flashedge.scheduling.prefix_order import Order, Paths

Blocks = tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheCost:
    """Blocks that running some paths touches, computes and evicts."""

    touched: int
    """Of all paths."""
    computed: int
    """Not found in the cache."""
    evicted: int
    """Removed to make room."""


class RadixTree:
    """Numbers the blocks: one number for each distinct path prefix."""

    def __init__(self) -> None:
        self._ids: dict[tuple[int, int], int] = {}

    def __len__(self) -> int:
        """Number of distinct blocks of all paths so far."""
        return len(self._ids)

    def add_path(self, path: Sequence[int]) -> Blocks:
        """Return the block of each symbol, the root's first: (len(path),)."""
        found: list[int] = []
        at = 0
        for symbol in path:
            at = self._ids.setdefault((at, symbol), len(self._ids) + 1)
            found.append(at)
        return tuple(found)


class LruCache:
    """Cached blocks of an engine that runs one path at a time.

    When a path ends, its blocks become the youngest, the root's block last, so the leaf is evicted
    first. Blocks of the running path are never evicted. vLLM and the simulator do the same.
    """

    def __init__(self, capacity_blocks: int) -> None:
        self._capacity = capacity_blocks
        self._cached: OrderedDict[int, None] = OrderedDict()  # oldest first

    def run(self, blocks: Blocks) -> CacheCost:
        """Run one path. Raises ValueError if it is longer than the cache."""
        if len(blocks) > self._capacity:
            raise ValueError(f"a path of {len(blocks)} blocks, {self._capacity} in the cache")
        found = next((i for i, b in enumerate(blocks) if b not in self._cached), len(blocks))
        for block in blocks:
            self._cached.pop(block, None)
        evicted = max(len(self._cached) + len(blocks) - self._capacity, 0)
        for _ in range(evicted):
            self._cached.popitem(last=False)
        self._cached.update(dict.fromkeys(reversed(blocks)))
        return CacheCost(touched=len(blocks), computed=len(blocks) - found, evicted=evicted)


def measure_cache_cost(levels: Sequence[tuple[Paths, Order]], capacity_blocks: int) -> CacheCost:
    """Run the paths of each level in its order, with one LRU cache for all levels.

    Raises ValueError for a path that is longer than the cache.
    """
    tree, cache = RadixTree(), LruCache(capacity_blocks)
    costs = [cache.run(tree.add_path(paths[i])) for paths, order in levels for i in order]
    return CacheCost(
        touched=sum(cost.touched for cost in costs),
        computed=sum(cost.computed for cost in costs),
        evicted=sum(cost.evicted for cost in costs),
    )


def build_batches(paths: Paths, order: Order, capacity_blocks: int) -> tuple[set[int], ...]:
    """Build the paper's T_i: the blocks of as many consecutive paths as fit into memory together.

    Raises ValueError for a path that is longer than the memory.
    """
    tree = RadixTree()
    found: list[set[int]] = []
    for i in order:
        blocks = tree.add_path(paths[i])
        if len(blocks) > capacity_blocks:
            raise ValueError(f"a path of {len(blocks)} blocks, {capacity_blocks} in memory")
        more = [block for block in blocks if not (found and block in found[-1])]
        if found and len(found[-1]) + len(more) <= capacity_blocks:
            found[-1].update(more)
        else:
            found.append(set(blocks))
    return tuple(found)


def count_evictions(paths: Paths, order: Order, capacity_blocks: int) -> int:
    """Count the blocks evicted between one batch and the next.

    This is the paper's Cost = Σ Nodes(T_i) − P(T_i, T_i+1), over the batches that have a next one.
    Raises ValueError as `build_batches` does.
    """
    pairs = pairwise(build_batches(paths, order, capacity_blocks))
    return sum(len(now - following) for now, following in pairs)
