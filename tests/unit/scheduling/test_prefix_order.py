"""Orders of paths and what they cost a cache, on trees small enough to count by hand."""

from __future__ import annotations

from flashedge.scheduling.prefix_order import arrival_order, prefix_order, sweep_order
from scripts.bench.flashtts.orders import scattered_order, sum_shared
from scripts.bench.flashtts.radix_cost import build_batches, count_evictions, measure_cache_cost

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
