"""In which order waiting paths are handed to an engine, and orders to compare with.

A path is a sequence of symbols (node ids, token ids, hashes of blocks). Two paths share KV as far
as they begin with the same symbols. All functions return a permutation: places in `paths`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import pairwise, takewhile
from operator import eq
from random import Random

Paths = Sequence[Sequence[int]]
Order = tuple[int, ...]


def prefix_order(paths: Paths) -> Order:
    """After each path comes one of those left that share most with it.

    That is the order of the sorted paths, i.e. of a walk through their radix tree: children of a
    parent stand together, and since siblings are sorted by their own symbols, parents keep their
    relative order from level to level. No other order has a larger `shared_sum`: what paths share
    is ultrametric, and the walk's neighbours span a heaviest tree over all pairs.

    O(n log n) comparisons. Ref: arXiv 2509.00195 §4.2, App. A; docs/adr/0006.
    """
    return tuple(sorted(range(len(paths)), key=lambda i: tuple(paths[i])))


def sweep_order(paths: Paths) -> Order:
    """`prefix_order`, backwards at every other depth: the paths that ran last go on first, while
    their KV is still there. Always forwards, an LRU cache that is too small for a level has
    evicted each path just before it is due."""
    order = prefix_order(paths)
    return order[::-1] if max(map(len, paths), default=0) % 2 else order


def arrival_order(paths: Paths) -> Order:
    """As they come: the naive twin."""
    return tuple(range(len(paths)))


def random_order(paths: Paths, random: Random) -> Order:
    """What the paper compares with."""
    return tuple(random.sample(range(len(paths)), len(paths)))


def scattered_order(paths: Paths) -> Order:
    """After each path comes one of those left that share least with it; of these one of the
    subtrees with most paths left, so that they last. The worst case to compare with, nearly:
    O(n² depth).
    """
    left = list(range(len(paths)))
    prefixes = [[tuple(path[:k]) for k in range(len(path) + 1)] for path in paths]
    below = Counter(prefix for path in prefixes for prefix in path)
    order: list[int] = []
    while left:
        last = paths[order[-1]] if order else ()

        def rank(i: int, last: Sequence[int] = last) -> tuple[int, list[int]]:
            common = shared(last, paths[i])
            return common, [-below[prefix] for prefix in prefixes[i][common + 1 :]]

        chosen = min(left, key=rank)
        order.append(chosen)
        left.remove(chosen)
        below.subtract(prefixes[chosen])
    return tuple(order)


def shared(one: Sequence[int], other: Sequence[int]) -> int:
    """P(c, c'): symbols that both begin with."""
    return sum(1 for _ in takewhile(bool, map(eq, one, other)))


def shared_sum(paths: Paths, order: Order) -> int:
    """The sum of what neighbours share. Ref: arXiv 2509.00195 App. A.2, Score(S)."""
    return sum(shared(paths[a], paths[b]) for a, b in pairwise(order))
