"""How well scores tell right from wrong."""

import math

import pytest

from scripts.bench.pearson import pearson
from scripts.lab.statistics import auc, bootstrap, calibration, interval, kendall, mean


def test_auc_counts_ties_half() -> None:
    assert (auc([0.9, 0.8], [0.1, 0.2]), auc([0.1], [0.9])) == (1.0, 0.0)
    assert (auc([0.5, 0.5], [0.5]), auc([0.5, 0.9], [0.5])) == (0.5, 0.75)
    assert math.isnan(auc([], [0.5]))


def test_calibration_error_is_the_gap_weighted_by_count() -> None:
    error, rows = calibration([0.9, 0.9, 0.9, 0.1], [True, True, False, False])
    assert error == pytest.approx(0.75 * (0.9 - 2 / 3) + 0.25 * 0.1)
    assert [row["count"] for row in rows] == [1, 3]
    assert calibration([1.0], [True])[0] == 0.0
    assert math.isnan(calibration([], [])[0])


def test_pearson_of_known_values() -> None:
    assert pearson([1, 2, 3], [2, 4, 6]) == pytest.approx(1.0)
    assert pearson([1, 2, 3], [1, 0, 1]) == pytest.approx(0.0)
    assert math.isnan(pearson([1, 1], [1, 2]))


def test_kendall_of_known_values() -> None:
    assert kendall([1, 2, 3, 4], [1, 2, 4, 3]) == pytest.approx(4 / 6)
    assert kendall([1, 1, 2], [1, 2, 3]) == pytest.approx(2 / math.sqrt(2 * 3))  # one tie
    assert kendall([1, 2, 3], [9, 4, 1]) == -1.0
    assert math.isnan(kendall([1, 1], [1, 2]))


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
