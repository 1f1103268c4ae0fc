"""Orders of paths compared with every permutation, and with the claims of the paper's appendix."""

from itertools import pairwise, permutations
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flashedge.scheduling.prefix_order import order_by_arrival, order_by_prefix, order_by_sweep
from scripts.bench.flashtts import radix_cost
from scripts.bench.flashtts.orders import count_shared, scattered_order, sum_shared
from scripts.bench.flashtts.radix_cost import RadixTree, build_batches, measure_cache_cost

PATH = st.lists(st.integers(0, 2), max_size=4).map(tuple)
FEW = st.lists(PATH, min_size=1, max_size=6)
MANY = st.lists(st.lists(st.integers(0, 3), max_size=8).map(tuple), min_size=1, max_size=40)


@settings(max_examples=150, deadline=None)
@given(st.lists(PATH, max_size=6))
def test_no_permutation_shares_more(paths: list[tuple[int, ...]]) -> None:
    sums = [sum_shared(paths, order) for order in permutations(range(len(paths)))]
    assert sum_shared(paths, order_by_prefix(paths)) == max(sums)
    assert sum_shared(paths, order_by_sweep(paths)) == max(sums)


@settings(deadline=None)
@given(MANY)
def test_each_path_is_followed_by_one_that_shares_most(paths: list[tuple[int, ...]]) -> None:
    """The scheduling invariant of §4.2."""
    order = order_by_prefix(paths)
    assert sorted(order) == list(range(len(paths)))
    for k in range(len(order) - 1):
        following = [count_shared(paths[order[k]], paths[i]) for i in order[k + 1 :]]
        assert following[0] == max(following)


@settings(deadline=None)
@given(MANY)
def test_each_block_is_computed_once_by_a_cache_of_one_path(paths: list[tuple[int, ...]]) -> None:
    one = max(max(map(len, paths)), 1)
    tree = RadixTree()
    for path in paths:
        tree.add_path(path)
    order = order_by_prefix(paths)
    assert measure_cache_cost([(paths, order)], one).computed == len(tree)
    assert sum_shared(paths, order) == sum(map(len, paths)) - len(tree)


@settings(deadline=None)
@given(FEW, st.integers(4, 12))
def test_costs_are_consistent(paths: list[tuple[int, ...]], capacity: int) -> None:
    for order in (order_by_prefix(paths), scattered_order(paths)):
        groups = build_batches(paths, order, capacity)
        assert all(len(group) <= capacity for group in groups)
        common = sum(len(a & b) for a, b in pairwise(groups))
        assert radix_cost.count_evictions(paths, order, capacity) == (
            sum(len(group) for group in groups[:-1]) - common
        )
        cost = measure_cache_cost([(paths, order)], capacity)
        assert cost.computed <= cost.touched == sum(map(len, paths))
        assert cost.computed - cost.evicted <= capacity


# two parents of two children each, from a search that takes the parents in turn
CROSSED = [(1, 10), (2, 20), (1, 11), (2, 21)]


@pytest.mark.parametrize(
    ("order", "paths", "expected"),
    [
        (order_by_prefix, CROSSED, (0, 2, 1, 3)),
        (order_by_sweep, CROSSED, (0, 2, 1, 3)),
        (order_by_arrival, CROSSED, (0, 1, 2, 3)),
        (scattered_order, CROSSED, (0, 1, 2, 3)),
        (scattered_order, [(1, 10), (1, 11), (2, 20), (2, 21)], (0, 2, 1, 3)),
        (order_by_prefix, [(2, 3), (2, 4), (1, 5), (1, 6)], (2, 3, 0, 1)),
        (order_by_prefix, [(1,), (2,)], (0, 1)),
        (order_by_sweep, [(1,), (2,)], (1, 0)),  # reversed at each level
        (order_by_prefix, [(1, 2), (1,), (1, 2), ()], (3, 1, 0, 2)),
        *(
            (order, [], ())
            for order in (order_by_prefix, order_by_sweep, order_by_arrival, scattered_order)
        ),
    ],
)
def test_orders_by_hand(order: Any, paths: list[tuple[int, ...]], expected: Any) -> None:
    assert order(paths) == expected


@pytest.mark.parametrize(
    ("order", "computed", "evicted", "between"),
    [(order_by_prefix, 6, 4, 3), (order_by_arrival, 8, 6, 6)],
)
def test_costs_by_hand(order: Any, computed: int, evicted: int, between: int) -> None:
    cost = radix_cost.CacheCost(touched=8, computed=computed, evicted=evicted)
    assert measure_cache_cost([(CROSSED, order(CROSSED))], 2) == cost
    assert radix_cost.count_evictions(CROSSED, order(CROSSED), 3) == between


def test_a_sweep_reuses_what_the_forward_order_evicts() -> None:
    """Four parents, two of which fit: in forward order each is evicted before its children run."""
    parents = [(i,) for i in range(4)]
    children = [(i, 10 + i) for i in range(4)]

    def computed(order) -> int:  # type: ignore[no-untyped-def]
        levels = [(paths, order(paths)) for paths in (parents, children)]
        return measure_cache_cost(levels, 2).computed

    assert computed(order_by_prefix) == 4 + 8
    assert computed(order_by_sweep) == 4 + 7


def test_a_path_longer_than_the_cache_is_refused() -> None:
    with pytest.raises(ValueError, match="a path of 2 blocks, 1"):
        measure_cache_cost([(CROSSED, (0,))], 1)
    with pytest.raises(ValueError, match="a path of 2 blocks, 1"):
        build_batches(CROSSED, (0,), 1)
