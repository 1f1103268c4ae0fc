"""Fits recover what lengths were drawn from, also if many of them were cut; few lengths suffice."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest
from scipy import stats

from flashedge.scheduling.lengths.base import LengthDistribution
from flashedge.scheduling.lengths.families.catalog import FAMILIES, NAMES
from flashedge.scheduling.lengths.families.exponential import Exponential
from flashedge.scheduling.lengths.families.gamma import Gamma
from flashedge.scheduling.lengths.families.log_normal import LogNormal
from flashedge.scheduling.lengths.families.log_t import LogT
from flashedge.scheduling.lengths.families.point import Point
from flashedge.scheduling.lengths.families.weibull import Weibull
from flashedge.scheduling.lengths.fit import PRIOR_SPREAD, fit, log_likelihood
from flashedge.scheduling.lengths.tail import compute_figures

TRUE: dict[str, LengthDistribution] = {
    "log_t": LogT(5.0, 0.4),
    "log_t_free": LogT(5.0, 0.4, 2.0),
    "log_normal": LogNormal(5.0, 0.6),
    "gamma": Gamma(3.0, 60.0),
    "weibull": Weibull(1.5, 200.0),
    "exponential": Exponential(180.0),
}
LENGTHS = [120.0, 180.0, 95.0, 240.0, 133.0, 151.0, 88.0, 410.0, 170.0, 128.0]


def draw(distribution: LengthDistribution, count: int, seed: int = 0) -> Any:
    return distribution.inverse_survival(1 - np.random.default_rng(seed).random(count)).clip(1)


def list_errors(found: LengthDistribution, true: LengthDistribution) -> list[float]:
    """The relative errors of the parameters."""
    return [
        abs(getattr(found, field.name) / getattr(true, field.name) - 1)
        for field in dataclasses.fields(true)
    ]


@pytest.mark.parametrize("name", list(TRUE))
@pytest.mark.parametrize("kept", [0.7, 0.5, 0.4])
def test_a_censored_fit_recovers_what_a_naive_one_does_not(name: str, kept: float) -> None:
    """Each length is cut at a limit of its own, so that a share `kept` of them is whole."""
    true, random = TRUE[name], np.random.default_rng(7)
    whole = draw(true, 4000)
    level = float(true.quantile(np.array(kept)))
    limits = level * random.uniform(0.8, 1.25, 4000)
    is_censored = whole > limits
    assert 0.25 < is_censored.mean() < 0.65
    lengths = np.minimum(whole, limits)
    found = fit(name, lengths, is_censored)
    assert max(list_errors(found, true)) < (0.15 if name == "log_t_free" else 0.08)
    naive = fit(name, lengths)
    assert max(list_errors(naive, true)) > 0.15
    ends = {"max_tokens": 100_000.0}
    expected = compute_figures(true, **ends).conditional_value_at_risk
    wrong = compute_figures(naive, **ends).conditional_value_at_risk
    assert wrong < 0.8 * expected  # what was cut looks short
    if name != "log_t_free":
        close = compute_figures(found, **ends).conditional_value_at_risk
        assert close == pytest.approx(expected, rel=0.15)


@pytest.mark.parametrize("name", list(TRUE))
def test_a_fit_recovers_whole_lengths(name: str) -> None:
    found = fit(name, draw(TRUE[name], 4000))
    assert max(list_errors(found, TRUE[name])) < (0.15 if name == "log_t_free" else 0.05)


def test_without_censoring_a_fit_has_the_known_form() -> None:
    logs = np.log(LENGTHS)
    normal = fit("log_normal", LENGTHS, prior_weight=0)
    assert isinstance(normal, LogNormal)
    assert (normal.mu, normal.sigma) == pytest.approx((logs.mean(), logs.std()), rel=1e-3)
    exponential = fit("exponential", LENGTHS, prior_weight=0)
    assert isinstance(exponential, Exponential)
    assert exponential.mean == pytest.approx(np.mean(LENGTHS), rel=1e-3)
    gamma = fit("gamma", LENGTHS, prior_weight=0)
    shape, _, scale = stats.gamma.fit(LENGTHS, floc=0)
    assert isinstance(gamma, Gamma)
    assert (gamma.shape, gamma.scale) == pytest.approx((shape, scale), rel=2e-3)
    weibull = fit("weibull", LENGTHS, prior_weight=0)
    shape, _, scale = stats.weibull_min.fit(LENGTHS, floc=0)
    assert isinstance(weibull, Weibull)
    assert (weibull.shape, weibull.scale) == pytest.approx((shape, scale), rel=2e-3)
    student = fit("log_t", LENGTHS, prior_weight=0)
    _, location, scale = stats.t.fit(logs, fix_df=3.5)
    assert isinstance(student, LogT)
    assert (student.mu, student.sigma) == pytest.approx((location, scale), rel=2e-3)


def test_a_censored_exponential_is_tokens_by_ended_outputs() -> None:
    flags = [True, False, False, True] + [False] * 6
    found = fit("exponential", LENGTHS, flags, prior_weight=0)
    assert isinstance(found, Exponential)
    assert found.mean == pytest.approx(sum(LENGTHS) / 8, rel=1e-3)


@pytest.mark.parametrize("seed", range(5))
def test_a_free_nu_is_never_less_likely(seed: int) -> None:
    lengths = draw(LogT(5.0, 0.5, 1.5), 30, seed).round()
    flags = lengths > 200
    free = fit("log_t_free", np.minimum(lengths, 200), flags, prior_weight=0)
    fixed = fit("log_t", np.minimum(lengths, 200), flags, prior_weight=0)
    likelihoods = [log_likelihood(one, np.minimum(lengths, 200), flags) for one in (free, fixed)]
    assert likelihoods[0] >= likelihoods[1] - 1e-9


@pytest.mark.parametrize("name", list(FAMILIES))
def test_no_neighbour_is_more_likely(name: str) -> None:
    flags = [False] * 7 + [True] * 3
    found = fit(name, LENGTHS, flags, prior_weight=0)
    best = log_likelihood(found, LENGTHS, flags)
    for field in dataclasses.fields(found):
        for factor in (0.98, 1.02):
            value = getattr(found, field.name) * factor
            near = dataclasses.replace(found, **{field.name: value})
            if field.name != "nu":  # may end at its bound; fixed in log_t
                assert log_likelihood(near, LENGTHS, flags) < best


def test_the_log_likelihood_takes_bounds_as_bounds() -> None:
    distribution = LogNormal(5.0, 0.5)
    expected = stats.lognorm(0.5, scale=np.exp(5.0))
    assert log_likelihood(distribution, [100, 200], [False, True]) == pytest.approx(
        expected.logpdf(100) + expected.logsf(200)
    )
    assert log_likelihood(distribution, [100, 200]) == pytest.approx(
        expected.logpdf([100, 200]).sum()
    )


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(
    ("lengths", "is_censored"),
    [
        ([300], [False]),
        ([300], [True]),
        ([1], [False]),
        ([1, 1], [False, False]),
        ([300, 300, 300], [False] * 3),
        ([300] * 40, [False] * 40),
        ([300, 310], [False, True]),
        ([100, 2000], [False, False]),
        ([1024] * 8, [True] * 8),
        ([5, 90, 1024], [True] * 3),
        ([100, 101, 99, 30_000], [False, False, False, True]),
        ([50, 4000], [False, True]),
    ],
)
def test_few_lengths_give_a_usable_distribution(
    name: str, lengths: list[float], is_censored: list[bool]
) -> None:
    found = fit(name, lengths, is_censored)
    assert all(type(value) is float for value in dataclasses.astuple(found))
    figures = compute_figures(found, 32_768)
    assert 0.3 < figures.expected <= figures.conditional_value_at_risk <= 32_768
    shortest, longest = min(lengths), max(lengths)
    median = float(found.quantile(np.array(0.5)))
    assert 0.5 * shortest < median < 12 * longest
    if all(is_censored) and name != "point":
        assert median > 0.7 * longest


@pytest.mark.parametrize("name", ["log_t", "log_t_free", "log_normal"])
def test_one_length_has_about_the_spread_of_any_prompt(name: str) -> None:
    for lengths, spread in (([300], PRIOR_SPREAD / 2**0.5), ([300] * 3, PRIOR_SPREAD / 10**0.5)):
        found = fit(name, lengths)
        assert isinstance(found, LogT | LogNormal)
        assert found.mu == pytest.approx(np.log(300), abs=1e-3)
        assert found.sigma == pytest.approx(spread, rel=0.01)


def test_without_a_prior_equal_lengths_have_the_spread_of_rounding() -> None:
    found = fit("log_normal", [300, 300, 300], prior_weight=0)
    assert isinstance(found, LogNormal)
    assert found.sigma == pytest.approx(1 / (12**0.5 * 300), rel=1e-6)


def test_longer_bounds_make_longer_distributions() -> None:
    short, long = (fit("log_t", [200, 250, bound], [False, False, True]) for bound in (260, 900))
    medians = [float(one.quantile(np.array(0.5))) for one in (short, long)]
    assert medians[0] < medians[1]


def test_the_prior_vanishes() -> None:
    lengths = draw(LogNormal(5.0, 0.05), 200)
    with_prior, without = fit("log_normal", lengths), fit("log_normal", lengths, prior_weight=0)
    assert max(list_errors(with_prior, without)) < 0.01


def test_a_point_estimate_is_the_mean_and_allows_for_censoring() -> None:
    mean = fit("point", [100, 200, 600])
    assert isinstance(mean, Point)
    assert mean.tokens == pytest.approx(300.0)
    # The first of three is cut at 100, and stands for as long as the others that go on then.
    first = fit("point", [100, 200, 600], [True, False, False])
    assert isinstance(first, Point)
    assert first.tokens == pytest.approx(400.0)
    later = fit("point", [100, 200, 600], [False, True, False])
    assert isinstance(later, Point)
    assert later.tokens == pytest.approx(100 + 500 * 2 / 3)
    assert fit("point", [700, 1024], [True, True]) == Point(1024.0)


def test_a_bound_of_nothing_is_left_out() -> None:
    assert fit("log_t", [0, 90, 100], [True, False, False]) == fit("log_t", [90, 100])


@pytest.mark.parametrize(
    ("name", "lengths", "is_censored", "weight", "says"),
    [
        ("log_t", [], None, 1, "no lengths"),
        ("log_t", [0], [True], 1, "no lengths"),
        ("log_t", [0, 5], None, 1, "at least one token"),
        ("log_t", [np.inf], None, 1, "finite"),
        ("log_t", [np.nan], None, 1, "finite"),
        ("log_t", [5, 6], [True], 1, "shape"),
        ("log_t", [5, 6], [True, True], 0, "lower bounds alone"),
        ("log_t", [5, 6], None, -1, "prior weight"),
        ("cauchy", [5, 6], None, 1, "log_normal"),
    ],
)
def test_what_cannot_be_fitted_is_refused(
    name: str, lengths: list[float], is_censored: list[bool] | None, weight: float, says: str
) -> None:
    with pytest.raises(ValueError, match=says):
        fit(name, lengths, is_censored, prior_weight=weight)
