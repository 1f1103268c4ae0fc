"""The order in which waiting paths are submitted to an engine, and orders to compare with.

A path is a sequence of symbols: node ids, token ids or hashes of blocks. Two paths share KV as far
as they begin with the same symbols. An order is a permutation of the indices of `paths`.
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
    """Put after each path one of the remaining paths that share most with it.

    This is the order of the sorted paths, which is a walk through their radix tree. The children of
    a parent stand together. Siblings are sorted by their own symbols, so parents keep their
    relative order from level to level. No other order has a larger `sum_shared`: shared prefixes
    are ultrametric, so neighbours in the walk span a heaviest tree over all pairs.

    Takes O(n log n) comparisons. Ref: arXiv 2509.00195 §4.2, App. A; docs/adr/0006.
    """
    return tuple(sorted(range(len(paths)), key=lambda i: tuple(paths[i])))


def sweep_order(paths: Paths) -> Order:
    """Reverse `prefix_order` at every other depth.

    The paths that ran last continue first, while their KV is still cached. Without the reversal, an
    LRU cache that is too small for a level evicts each path just before it is needed.
    """
    order = prefix_order(paths)
    return order[::-1] if max(map(len, paths), default=0) % 2 else order


def arrival_order(paths: Paths) -> Order:
    """Keep the order of arrival: the naive twin."""
    return tuple(range(len(paths)))


def random_order(paths: Paths, random: Random) -> Order:
    """Shuffle the paths: what the paper compares with."""
    return tuple(random.sample(range(len(paths)), len(paths)))


def scattered_order(paths: Paths) -> Order:
    """Put after each path one of the remaining paths that share least with it.

    Among those it takes one from the subtree with most paths left, so that subtrees do not run out.
    Nearly the worst order. Takes O(n² depth).
    """
    left = list(range(len(paths)))
    prefixes = [[tuple(path[:k]) for k in range(len(path) + 1)] for path in paths]
    below = Counter(prefix for path in prefixes for prefix in path)
    order: list[int] = []
    while left:
        last = paths[order[-1]] if order else ()

        def rank(i: int, last: Sequence[int] = last) -> tuple[int, list[int]]:
            common = count_shared(last, paths[i])
            return common, [-below[prefix] for prefix in prefixes[i][common + 1 :]]

        chosen = min(left, key=rank)
        order.append(chosen)
        left.remove(chosen)
        below.subtract(prefixes[chosen])
    return tuple(order)


def count_shared(one: Sequence[int], other: Sequence[int]) -> int:
    """Count the symbols that both begin with: the paper's P(c, c')."""
    return sum(1 for _ in takewhile(bool, map(eq, one, other)))


def sum_shared(paths: Paths, order: Order) -> int:
    """Sum what neighbours share. Ref: arXiv 2509.00195 App. A.2, Score(S)."""
    return sum(count_shared(paths[a], paths[b]) for a, b in pairwise(order))
