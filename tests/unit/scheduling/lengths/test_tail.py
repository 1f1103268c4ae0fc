"""Figures by quadrature equal the paper's formulas and closed forms; degenerate cases are sane."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from scipy import integrate, stats

from flashedge.scheduling.lengths.base import LengthDistribution
from flashedge.scheduling.lengths.conditional import condition, is_outlived
from flashedge.scheduling.lengths.families.exponential import Exponential
from flashedge.scheduling.lengths.families.gamma import Gamma
from flashedge.scheduling.lengths.families.log_normal import LogNormal
from flashedge.scheduling.lengths.families.log_t import LogT
from flashedge.scheduling.lengths.families.point import Point
from flashedge.scheduling.lengths.families.weibull import Weibull
from flashedge.scheduling.lengths.tail import (
    compute_figures,
    make_unknown_figures,
    sample_figures,
)

FAMILIES: list[LengthDistribution] = [
    LogT(5.0, 0.4),
    LogT(5.0, 0.02),
    LogT(5.0, 1.2, 1.5),
    LogNormal(5.0, 0.7),
    Gamma(3.0, 60.0),
    Weibull(0.8, 200.0),
    Exponential(180.0),
]


@pytest.mark.parametrize("sigma", [0.01, 0.05, 0.2, 0.5, 1.0, 2.0, 4.0])
@pytest.mark.parametrize("limit", [100, 170, 1024, 32_768])
def test_the_figures_are_those_of_the_paper(sigma: float, limit: int) -> None:
    """Eq. (9) and (10), with G integrated over the standard t-distribution as in App. B."""
    mu, level, student = 5.0, 0.9, stats.t(3.5)

    def partial(low: float, high: float) -> float:
        points = [z for z in (-8, -2, 0, 2, 8, 30) if low < z < high]
        edges = [max(low, -700.0 / sigma), *points, high]
        return sum(
            integrate.quad(
                lambda z: np.exp(mu + sigma * z) * student.pdf(z), a, b, epsrel=1e-10, limit=500
            )[0]
            for a, b in pairwise(edges)
        )

    end = (np.log(limit) - mu) / sigma
    cut = limit * student.sf(end)
    found = compute_figures(LogT(mu, sigma), limit, confidence=level)
    assert found.expected == pytest.approx(partial(-np.inf, end) + cut, rel=5e-4)
    risk = student.ppf(level)
    if risk >= end:
        expected, value = limit, limit
    else:
        expected, value = (partial(risk, end) + cut) / (1 - level), np.exp(mu + sigma * risk)
    assert found.conditional_value_at_risk == pytest.approx(expected, rel=5e-4)
    assert found.value_at_risk == pytest.approx(value)
    assert found.cut_share == pytest.approx(student.sf(end))
    assert found.median == pytest.approx(min(np.exp(mu), limit))


def test_an_exponential_has_a_closed_form() -> None:
    found = compute_figures(Exponential(180.0), 500)
    value = 180 * np.log(10)
    assert found.expected == pytest.approx(180 * (1 - np.exp(-500 / 180)), rel=2e-4)
    assert found.value_at_risk == pytest.approx(value)
    tail = 180 * (1 - np.exp(-(500 - value) / 180))
    assert found.conditional_value_at_risk == pytest.approx(value + tail, rel=2e-4)


@pytest.mark.parametrize("drawn", [1, 90, 400, 1500])
def test_an_exponential_forgets_what_is_drawn(drawn: float) -> None:
    found = compute_figures(Exponential(180.0), 2000, drawn=drawn)
    fresh = compute_figures(Exponential(180.0), 2000 - drawn)
    assert found.expected - drawn == pytest.approx(fresh.expected, rel=1e-3)
    assert found.conditional_value_at_risk - drawn == pytest.approx(
        fresh.conditional_value_at_risk, rel=1e-3
    )
    assert found.cut_share == pytest.approx(fresh.cut_share)


@pytest.mark.parametrize("distribution", FAMILIES, ids=repr)
@pytest.mark.parametrize("drawn", [0, 120, 165, 700])
def test_both_ways_agree(distribution: LengthDistribution, drawn: float) -> None:
    exact = compute_figures(distribution, 1024, drawn=drawn)
    sampled = sample_figures(distribution, 1024, drawn=drawn, seed=3, samples=400_000)
    assert exact.expected == pytest.approx(sampled.expected, rel=0.01)
    assert exact.median == pytest.approx(sampled.median, rel=0.01)
    assert exact.value_at_risk == pytest.approx(sampled.value_at_risk, rel=0.02)
    assert exact.conditional_value_at_risk == pytest.approx(
        sampled.conditional_value_at_risk, rel=0.02
    )
    assert exact.cut_share == pytest.approx(sampled.cut_share, abs=0.005)


def test_ten_thousand_samples_are_what_the_paper_draws_and_a_seed_repeats_them() -> None:
    first, again = (sample_figures(LogT(5.0, 0.4), 1024, seed=1) for _ in range(2))
    assert first == again != sample_figures(LogT(5.0, 0.4), 1024, seed=2)
    exact = compute_figures(LogT(5.0, 0.4), 1024)
    assert first.expected == pytest.approx(exact.expected, rel=0.03)


@pytest.mark.parametrize("distribution", FAMILIES, ids=repr)
@pytest.mark.parametrize("share", [0.01, 0.5, 0.9, 0.99])
def test_a_condition_leaves_those_that_went_on(
    distribution: LengthDistribution, share: float
) -> None:
    """Brute force: of very many outputs, those that are longer."""
    drawn = float(distribution.quantile(np.array(share)))
    lengths = distribution.quantile((np.arange(1_000_000) + 0.5) / 1_000_000)
    longer = lengths[lengths > drawn]
    given = condition(distribution, drawn)
    at = np.array([drawn * 1.01, drawn * 1.3, drawn * 3])
    expected = np.searchsorted(longer, at) / longer.size
    assert given.cdf(at) == pytest.approx(expected, abs=0.002)
    assert np.exp(given.log_survival(at)) == pytest.approx(1 - expected, abs=0.002)
    levels = np.array([0.1, 0.5, 0.9])
    assert given.quantile(levels) == pytest.approx(np.quantile(longer, levels), rel=0.02)
    assert given.inverse_survival(1 - levels) == pytest.approx(given.quantile(levels))
    step = 1e-4 * drawn
    slope = (given.cdf(at + step) - given.cdf(at - step)) / (2 * step)
    assert np.exp(given.logpdf(at)) == pytest.approx(slope, rel=1e-3, abs=1e-9)
    before = np.array([drawn / 2, drawn])
    assert given.cdf(before).tolist() == [0, 0]
    assert given.logpdf(before).tolist() == [-np.inf, -np.inf]


def test_a_condition_on_more_replaces_one_on_less() -> None:
    whole = LogT(5.0, 0.4)
    assert condition(whole, 0) is whole
    once = condition(whole, 300)
    assert condition(condition(whole, 100), 300) == once == condition(once, 100)
    assert hash(once) == hash(condition(whole, 300))


def test_a_condition_far_in_the_tail_keeps_its_digits() -> None:
    """1 − cdf is 0 here."""
    light = LogNormal(5.0, 0.1)
    assert light.cdf(np.array(400.0)) == 1
    found = compute_figures(light, 4096, drawn=400)
    sampled = sample_figures(light, 4096, drawn=400, seed=0)
    assert 400 < found.median < found.expected < found.conditional_value_at_risk < 430
    assert found.expected == pytest.approx(sampled.expected, rel=1e-3)


def test_an_output_that_outlives_its_prediction_counts_as_long_as_its_limit() -> None:
    assert is_outlived(Point(300), 300)
    assert not is_outlived(Point(300), 299)
    unknown = make_unknown_figures(1024)
    assert compute_figures(Point(300), 1024, drawn=300) == unknown
    assert sample_figures(Point(300), 1024, drawn=300, seed=0) == unknown
    assert compute_figures(Gamma(400.0, 0.5), 1024, drawn=900) == unknown
    assert unknown.expected == unknown.conditional_value_at_risk == 1024
    with pytest.raises(ValueError, match="no outputs of more than 300"):
        condition(Point(300), 300)


def test_a_point_has_its_length_for_every_figure() -> None:
    for drawn in (0, 100, 299.5):
        for found in (
            compute_figures(Point(300), 1024, drawn=drawn),
            sample_figures(Point(300), 1024, drawn=drawn, seed=0),
        ):
            assert found.expected == pytest.approx(300)
            assert found.median == found.value_at_risk == 300
            assert found.conditional_value_at_risk == pytest.approx(300)
            assert found.cut_share == 0
    cut = compute_figures(Point(300), 200)
    assert (cut.expected, cut.conditional_value_at_risk, cut.cut_share) == (200, 200, 1)


@pytest.mark.parametrize("distribution", FAMILIES, ids=repr)
def test_all_that_is_drawn_is_the_whole(distribution: LengthDistribution) -> None:
    for drawn in (512, 600):
        assert compute_figures(distribution, 512, drawn=drawn) == make_unknown_figures(512)


@pytest.mark.parametrize(
    ("max_tokens", "drawn", "level"),
    [(0, 0, 0.9), (-5, 0, 0.9), (np.inf, 0, 0.9), (100, -1, 0.9), (100, 0, 0), (100, 0, 1)],
)
def test_arguments_out_of_range_are_refused(max_tokens: float, drawn: float, level: float) -> None:
    with pytest.raises(ValueError, match=r"must be|can't have"):
        compute_figures(LogT(5.0, 0.4), max_tokens, drawn=drawn, confidence=level)
    with pytest.raises(ValueError, match=r"must be|can't have"):
        sample_figures(LogT(5.0, 0.4), max_tokens, drawn=drawn, confidence=level, seed=0)
    with pytest.raises(ValueError, match="can't have"):
        condition(LogT(5.0, 0.4), -1)
