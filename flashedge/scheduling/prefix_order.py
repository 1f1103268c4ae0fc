"""The order in which waiting paths are submitted to an engine.

A path is a sequence of symbols: node ids, token ids or hashes of blocks. Two paths share KV as far
as they begin with the same symbols. An order is a permutation of the indices of `paths`.
"""

from collections.abc import Sequence

Paths = Sequence[Sequence[int]]
Order = tuple[int, ...]


def order_by_prefix(paths: Paths) -> Order:
    """Sort the paths, which is a walk through their radix tree: after each path comes one of the
    remaining paths that share most with it.

    Neighbours share as much in sum as in any order: shared prefixes are ultrametric, so neighbours
    in the walk span a heaviest tree over all pairs. Parents keep their relative order from level to
    level. Ref: arXiv 2509.00195 §4.2, App. A; docs/adr/0006.
    """
    return tuple(sorted(range(len(paths)), key=lambda i: tuple(paths[i])))


def order_by_sweep(paths: Paths) -> Order:
    """Order by prefix, and reverse the order where the longest path has an odd number of symbols:
    at every other level, if symbols are nodes. So the paths that ran last continue first, while
    their KV is cached. Otherwise an LRU cache that is too small for a level evicts each path just
    before it is needed."""
    order = order_by_prefix(paths)
    return order[::-1] if max(map(len, paths), default=0) % 2 else order


def order_by_arrival(paths: Paths) -> Order:
    """Keep the order: the baseline."""
    return tuple(range(len(paths)))
