"""The order in which waiting paths are submitted to an engine.

A path is a sequence of symbols: node ids, token ids or hashes of blocks. Two paths share KV as far
as they begin with the same symbols. An order is a permutation of the indices of `paths`.
"""

from collections.abc import Sequence

Paths = Sequence[Sequence[int]]
Order = tuple[int, ...]


def prefix_order(paths: Paths) -> Order:
    """Put after each path one of the remaining paths that share most with it: sort them, which is a
    walk through their radix tree.

    No order has neighbours that share more in sum: shared prefixes are ultrametric, so
    neighbours in the walk span a heaviest tree over all pairs. Parents keep their relative order
    from level to level. Ref: arXiv 2509.00195 §4.2, App. A; docs/adr/0006.
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
    """The baseline."""
    return tuple(range(len(paths)))
