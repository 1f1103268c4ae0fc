"""Orders to compare prefix order with, and how much neighbours share in an order."""

from collections import Counter
from collections.abc import Sequence
from itertools import pairwise, takewhile
from operator import eq
from random import Random

from flashedge.scheduling.prefix_order import Order, Paths


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
