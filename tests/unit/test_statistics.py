"""Statistics and their intervals."""

from __future__ import annotations

import math

from flashedge.statistics import bootstrap, interval, mean


def test_intervals_hold_the_mean_and_shrink_with_the_count() -> None:
    few, many = [0.0, 1.0] * 10, [0.0, 1.0] * 250
    for values in (few, many):
        low, high = interval(values)
        assert low < mean(values) < high
    assert interval(many)[1] - interval(many)[0] < interval(few)[1] - interval(few)[0]
    assert interval(many) == interval(many)
    assert interval([1.0] * 5) == (1.0, 1.0)


def test_the_bootstrap_leaves_out_draws_without_a_value() -> None:
    problems = [[0.5], [], []]

    def last(some: object) -> float:
        flat = [x for problem in some for x in problem]  # type: ignore[attr-defined]
        return flat[-1] if flat else math.nan

    assert bootstrap(problems, last) == (0.5, 0.5)
    assert all(map(math.isnan, bootstrap([[]], last)))
    assert all(map(math.isnan, bootstrap([], last)))
