"""Orders of paths and what they cost a cache, on trees small enough to count by hand."""

from __future__ import annotations

from random import Random

import pytest

from flashedge.scheduling.prefix_order import arrival_order, prefix_order, sweep_order
from scripts.bench.flashtts.orders import random_order, scattered_order, sum_shared
from scripts.bench.flashtts.radix_cost import (
    CacheCost,
    LruCache,
    RadixTree,
    build_batches,
    count_evictions,
    measure_cache_cost,
)

# two parents of two children each, from a search that takes the parents in turn
CROSSED = [(1, 10), (2, 20), (1, 11), (2, 21)]


def test_children_of_a_parent_stand_together() -> None:
    assert prefix_order(CROSSED) == (0, 2, 1, 3)
    assert scattered_order(CROSSED) == arrival_order(CROSSED) == (0, 1, 2, 3)


def test_parents_keep_their_order_whatever_the_ids_of_their_children() -> None:
    assert prefix_order([(2, 3), (2, 4), (1, 5), (1, 6)]) == (2, 3, 0, 1)


def test_a_sweep_is_reversed_at_each_level() -> None:
    level = [(1,), (2,)]
    assert sweep_order(level) == prefix_order(level)[::-1] == (1, 0)
    assert sweep_order(CROSSED) == prefix_order(CROSSED)


def test_paths_may_be_equal_or_nested_or_missing() -> None:
    assert prefix_order([(1, 2), (1,), (1, 2), ()]) == (3, 1, 0, 2)
    for order in (prefix_order, sweep_order, arrival_order, scattered_order):
        assert order([]) == ()
    assert sum_shared([], ()) == 0


def test_a_random_order_depends_only_on_its_random_numbers() -> None:
    orders = {random_order(CROSSED, Random(seed)) for seed in range(50)}
    assert len(orders) > 12
    assert random_order(CROSSED, Random(3)) == random_order(CROSSED, Random(3))


def test_blocks_are_shared_as_far_as_paths_agree() -> None:
    tree = RadixTree()
    (a, b), (c, d), (e, f) = (tree.add_path(path) for path in ((1, 5), (1, 6), (2, 5)))
    assert a == c
    assert len({a, b, d, e, f}) == len(tree) == 5  # 5 after 2 is not the 5 after 1


def test_an_lru_cache_of_two_blocks() -> None:
    grouped = measure_cache_cost([(CROSSED, prefix_order(CROSSED))], 2)
    crossed = measure_cache_cost([(CROSSED, arrival_order(CROSSED))], 2)
    assert grouped == CacheCost(touched=8, computed=6, evicted=4)
    assert crossed == CacheCost(touched=8, computed=8, evicted=6)


def test_an_lru_cache_evicts_the_leaf_before_the_root() -> None:
    tree, cache = RadixTree(), LruCache(3)
    one, other = tree.add_path((1, 2)), tree.add_path((3, 4))
    assert cache.run(one).evicted == 0
    assert cache.run(other).evicted == 1  # one's leaf
    assert cache.run(one).computed == 1


def test_the_papers_cost_counts_blocks_evicted_between_batches() -> None:
    assert build_batches(CROSSED, prefix_order(CROSSED), 3) == ({1, 2, 3}, {4, 5, 6})
    assert count_evictions(CROSSED, prefix_order(CROSSED), 3) == 3
    assert count_evictions(CROSSED, arrival_order(CROSSED), 3) == 6
    assert count_evictions(CROSSED, arrival_order(CROSSED), 6) == 0
    assert build_batches([], (), 3) == ()


def test_a_sweep_reuses_what_the_forward_order_evicts() -> None:
    """Four parents, two of which fit: in forward order each is evicted before its children run."""
    parents = [(i,) for i in range(4)]
    children = [(i, 10 + i) for i in range(4)]

    def computed(order) -> int:  # type: ignore[no-untyped-def]
        levels = [(paths, order(paths)) for paths in (parents, children)]
        return measure_cache_cost(levels, 2).computed

    assert computed(prefix_order) == 4 + 8
    assert computed(sweep_order) == 4 + 7


def test_a_path_longer_than_the_cache_is_refused() -> None:
    for cost in (
        lambda: measure_cache_cost([(CROSSED, (0,))], 1),
        lambda: build_batches(CROSSED, (0,), 1),
    ):
        with pytest.raises(ValueError, match="a path of 2 blocks, 1"):
            cost()
