"""Lengths: quadrature against Monte Carlo, and what must rise with what."""

from statistics import fmean, stdev

import numpy as np
import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

from flashedge.scheduling.lengths.distribution import (
    CONFIDENCE,
    LengthDistribution,
    LogT,
    compute_figures,
)
from scripts.bench.mcts.point import Point
from tests.support.length_rig import LogNormal

MUS = st.floats(0.5, 9.0)
SIGMAS = st.floats(0.01, 2.0)
DISTRIBUTIONS: st.SearchStrategy[LengthDistribution] = st.one_of(
    st.builds(LogT, MUS, SIGMAS, st.floats(1.0, 30.0)),
    st.builds(LogNormal, MUS, SIGMAS),
    st.builds(Point, st.floats(2.0, 8000.0)),
)
LIMITS = st.integers(16, 32_768)
DRAWN = st.one_of(st.just(0), st.integers(0, 4000))
SEEDS, SAMPLES = 16, 10_000


def survive(distribution: LengthDistribution, drawn: float) -> float:
    return float(distribution.log_survival(np.array(float(drawn))))


def sample(distribution: LengthDistribution, limit: int, drawn: int, seed: int) -> list[float]:
    """The expectation, the median and the conditional value at risk of samples, as the paper
    estimates them (App. B)."""
    shares = 1 - np.random.default_rng(seed).random(SAMPLES)  # in (0, 1]
    shares = np.minimum(shares, 1 - 2**-53) * np.exp(survive(distribution, drawn))
    lengths = np.sort(np.clip(distribution.inverse_survival(shares), drawn, limit))
    tail = lengths[round(CONFIDENCE * SAMPLES) :]
    return [float(lengths.mean()), float(np.quantile(lengths, 0.5)), float(tail.mean())]


@settings(max_examples=60, deadline=None)
@given(DISTRIBUTIONS, LIMITS, DRAWN)
@example(LogT(1.0, 0.01, 2.25), 9373, 0)
def test_quadrature_is_monte_carlo(
    distribution: LengthDistribution, limit: int, drawn: int
) -> None:
    assume(drawn < limit and survive(distribution, drawn) > -600)
    exact = compute_figures(distribution, limit, drawn=drawn)
    samples = [sample(distribution, limit, drawn, seed) for seed in range(SEEDS)]
    # Of a heavy tail, what is rarer than one in all samples may be missing from them.
    rare = np.geomspace(1e-300, 1 / (SEEDS * SAMPLES), 1000)
    lengths = distribution.inverse_survival(rare * np.exp(survive(distribution, drawn)))
    unseen = np.trapezoid(np.clip(lengths, drawn, limit), rare) / (1 - CONFIDENCE)
    figures = exact.expected, exact.median, exact.conditional_value_at_risk
    for figure, values in zip(figures, zip(*samples, strict=True), strict=True):
        close = 8 * stdev(values) / SEEDS**0.5 + 1e-3 * fmean(values) + 1e-4 + unseen
        assert figure == pytest.approx(fmean(values), abs=close)


@settings(max_examples=200, deadline=None)
@given(DISTRIBUTIONS, LIMITS, DRAWN)
def test_the_figures_are_in_order(distribution: LengthDistribution, limit: int, drawn: int) -> None:
    found = compute_figures(distribution, limit, drawn=drawn)
    least = min(drawn, limit)
    assert least <= found.expected <= found.conditional_value_at_risk * (1 + 1e-9)
    assert found.conditional_value_at_risk <= limit * (1 + 1e-9)
    assert least <= found.median <= found.value_at_risk
    assert found.value_at_risk <= found.conditional_value_at_risk * (1 + 1e-9)


@settings(max_examples=200, deadline=None)
@given(DISTRIBUTIONS, LIMITS, st.integers(0, 2000), st.integers(1, 2000))
def test_who_goes_on_is_longer(
    distribution: LengthDistribution, limit: int, drawn: int, more: int
) -> None:
    """Whatever the distribution: P(X > x | X > d) rises with d."""
    assume(survive(distribution, drawn + more) > -600)
    now = compute_figures(distribution, limit, drawn=drawn)
    later = compute_figures(distribution, limit, drawn=drawn + more)
    assert later.expected >= now.expected * (1 - 1e-3)
    assert later.conditional_value_at_risk >= now.conditional_value_at_risk * (1 - 1e-3)


@settings(max_examples=200, deadline=None)
@given(MUS, SIGMAS, st.floats(0.0, 2.0), st.floats(1.0, 3.0), LIMITS)
def test_a_longer_or_wider_distribution_has_a_greater_tail(
    mu: float, sigma: float, shift: float, wider: float, limit: int
) -> None:
    base = compute_figures(LogT(mu, sigma), limit)
    longer = compute_figures(LogT(mu + shift, sigma), limit)
    assert longer.expected >= base.expected * (1 - 1e-3)
    assert longer.conditional_value_at_risk >= base.conditional_value_at_risk * (1 - 1e-3)
    wide = compute_figures(LogT(mu, sigma * wider), limit)
    assert wide.conditional_value_at_risk >= base.conditional_value_at_risk * (1 - 1e-3)
