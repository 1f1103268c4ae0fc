"""Kolmogorov and Smirnov's test against scipy's, and what both of its p-values are worth."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from flashedge.scheduling.lengths.families.log_normal import LogNormal
from flashedge.scheduling.lengths.families.log_t import LogT
from flashedge.scheduling.lengths.families.point import Point
from scripts.bench.lengths.ks import (
    compute_fixed_p_value,
    measure_distance,
    run_ks_test,
)

TRUE = LogNormal(5.0, 0.5)


def draw(count: int, seed: int) -> list[float]:
    shares = np.random.default_rng(seed).random(count)
    return np.rint(TRUE.quantile(shares)).clip(1).tolist()


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("count", [1, 8, 50, 300])
def test_distance_and_p_value_are_scipys(count: int, seed: int) -> None:
    lengths = draw(count, seed)
    expected = stats.kstest(lengths, TRUE.cdf)
    distance = measure_distance(TRUE, lengths)
    assert distance == pytest.approx(expected.statistic)
    assert compute_fixed_p_value(distance, count) == pytest.approx(expected.pvalue, abs=0.004)


@pytest.mark.parametrize("count", [5, 8, 20, 50, 200])
def test_the_p_value_is_right_where_it_decides(count: int) -> None:
    for p_value in (0.01, 0.05, 0.2):
        distance = float(stats.kstwo.isf(p_value, count))
        assert compute_fixed_p_value(distance, count) == pytest.approx(p_value, abs=0.003)


def test_lengths_of_another_family_fail() -> None:
    found = run_ks_test("exponential", draw(200, 0), draws=99)
    assert found.fixed_p_value < 1e-3
    assert found.bootstrap_p_value == 0.01  # none of the 99 samples lies so far
    right = run_ks_test("log_normal", draw(200, 0), draws=99)
    assert right.fixed_p_value > 0.05
    assert right.bootstrap_p_value is not None
    assert right.bootstrap_p_value > 0.05


def test_the_fixed_p_value_is_optimistic_and_the_bootstrap_is_not() -> None:
    """Of samples of the family itself, 5 % should fail at 0.05."""
    tests = [run_ks_test("log_normal", draw(40, seed), draws=39, seed=seed) for seed in range(120)]
    fixed = np.mean([test.fixed_p_value <= 0.05 for test in tests])
    bootstrap = np.mean([(test.bootstrap_p_value or 0) <= 0.05 for test in tests])
    assert fixed < 0.01
    assert 0.01 <= bootstrap <= 0.12
    assert np.mean([test.bootstrap_p_value or 0 for test in tests]) == pytest.approx(0.5, abs=0.1)


def test_the_bootstrap_allows_for_equal_integers() -> None:
    """Short lengths have many ties, which make the distance large for every distribution."""
    rng = np.random.default_rng(0)
    lengths = np.rint(LogT(1.6, 0.1).quantile(rng.random(80))).clip(1)
    found = run_ks_test("log_t", lengths, draws=99)
    assert found.fixed_p_value < 0.01
    assert found.bootstrap_p_value is not None
    assert found.bootstrap_p_value > 0.05


def test_a_seed_repeats_the_bootstrap() -> None:
    first, again = (run_ks_test("log_t", draw(20, 1), draws=19, seed=4) for _ in range(2))
    assert first == again


def test_without_draws_there_is_no_bootstrap() -> None:
    assert run_ks_test("gamma", draw(20, 1)).bootstrap_p_value is None


def test_a_point_is_far_from_lengths_that_differ() -> None:
    assert measure_distance(Point(150), [100.0, 200.0]) == 0.5
    assert measure_distance(Point(150), [150.0, 150.0]) == 1.0  # as for a continuous cdf
    assert run_ks_test("point", draw(50, 0)).fixed_p_value < 0.01
