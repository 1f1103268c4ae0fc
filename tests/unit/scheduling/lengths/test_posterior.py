"""Fits with a prior: few outputs, many outputs, outputs that were cut, and search trees."""

from __future__ import annotations

from dataclasses import replace
from math import exp, log

import numpy as np
import pytest

from flashedge.scheduling.lengths.posterior import (
    MIN_SIGMA,
    LengthPoints,
    Prior,
    _look,
    _Place,
    _View,
    fit_posterior,
)

PRIOR = Prior(mu=5.0, mu_sd=0.5, sigma=0.3, log_sigma_sd=0.4)
NOTHING = Prior(mu=5.0, mu_sd=50.0, sigma=0.3, log_sigma_sd=50.0)


def points(logs: np.ndarray, ended: np.ndarray, cut: np.ndarray | None = None) -> LengthPoints:
    return LengthPoints(
        logs=logs, ended=ended, censored=np.zeros_like(ended) if cut is None else cut
    )


def draw(count: int, *, mu: float = 6.0, sigma: float = 0.25, seed: int = 0) -> np.ndarray:
    return mu + sigma * np.random.default_rng(seed).standard_t(3.5, count)


def test_without_outputs_the_fit_is_the_prior() -> None:
    none = np.array([])
    found = fit_posterior(points(none, none), PRIOR)
    assert (found.mu, found.sigma) == pytest.approx((5.0, 0.3))
    assert found.mu_variance == pytest.approx(0.25)
    assert found.distribution.sigma == pytest.approx((0.3**2 + 0.25) ** 0.5)


def test_with_many_outputs_the_prior_no_longer_matters() -> None:
    logs = draw(4000)
    found = fit_posterior(points(logs, np.ones(4000)), PRIOR)
    assert found.mu == pytest.approx(6.0, abs=0.02)
    assert found.sigma == pytest.approx(0.25, rel=0.05)
    assert found.mu_variance < 1e-4


def test_few_outputs_are_drawn_towards_the_prior() -> None:
    found = [fit_posterior(points(np.full(k, 6.0), np.ones(k)), PRIOR).mu for k in (0, 1, 2, 8, 64)]
    assert found == sorted(found)
    assert 5.0 < found[1] < 6.0
    assert found[4] == pytest.approx(6.0, abs=0.01)


def test_equal_outputs_keep_a_spread() -> None:
    found = fit_posterior(points(np.full(100, 6.0), np.ones(100)), PRIOR)
    assert MIN_SIGMA <= found.sigma < 0.1


def test_cut_outputs_count_as_longer() -> None:
    logs = draw(3000)
    limit = 6.1
    kept, cut = np.minimum(logs, limit), (logs > limit).astype(float)
    right = fit_posterior(points(kept, 1 - cut, cut), PRIOR)
    short = fit_posterior(points(logs[logs <= limit], np.ones(int((logs <= limit).sum()))), PRIOR)
    assert right.mu == pytest.approx(6.0, abs=0.03)
    assert right.sigma == pytest.approx(0.25, rel=0.1)
    assert short.mu < right.mu - 0.1


def test_outputs_that_were_all_cut_raise_the_location() -> None:
    found = fit_posterior(points(np.array([6.0]), np.zeros(1), np.full(1, 8.0)), PRIOR)
    assert found.mu > 5.5
    assert found.mu_variance == pytest.approx(0.25)


@pytest.mark.parametrize("at", [(5.8, log(0.2)), (6.4, log(0.6)), (4.0, log(1.5))])
def test_the_derivatives_are_those_of_the_loss(at: tuple[float, float]) -> None:
    data = points(draw(40), np.ones(40), np.linspace(-0.4, 1, 40))

    def look(mu: float, log_sigma: float) -> _View:
        return _look(_Place(mu, log_sigma), data, 40.0, PRIOR)

    step, (mu, log_sigma) = 1e-5, at
    here = look(mu, log_sigma)
    up, down = look(mu + step, log_sigma), look(mu - step, log_sigma)
    wide, narrow = look(mu, log_sigma + step), look(mu, log_sigma - step)
    for found, more, less in (
        (here.by_mu, up.loss, down.loss),
        (here.by_sigma, wide.loss, narrow.loss),
        (here.by_mu_mu, up.by_mu, down.by_mu),
        (here.by_mu_sigma, up.by_sigma, down.by_sigma),
        (here.by_sigma_sigma, wide.by_sigma, narrow.by_sigma),
    ):
        assert found == pytest.approx((more - less) / (2 * step), rel=1e-4, abs=1e-4)


def test_no_place_nearby_is_more_likely() -> None:
    random = np.random.default_rng(1)
    for seed in range(30):
        logs = draw(random.integers(1, 30), mu=random.uniform(3, 8), seed=seed)
        cut = random.integers(0, 2, len(logs)).astype(float)
        data = points(logs, 1 - cut, cut)
        found = fit_posterior(data, PRIOR)
        ended = float(data.ended.sum())
        best = _look(_Place(found.mu, log(found.sigma)), data, ended, PRIOR).loss
        for away in ((0.01, 0), (-0.01, 0), (0, 0.01), (0, -0.01)):
            near = _Place(found.mu + away[0], log(found.sigma) + away[1])
            assert _look(near, data, ended, PRIOR).loss >= best


def test_one_output_says_little_of_the_spread() -> None:
    close = points(np.array([6.0, 6.0, 6.001]), np.full(3, 1 / 3))
    assert fit_posterior(close, replace(PRIOR, mu_sd=50.0)).sigma > 0.9 * PRIOR.sigma


def test_a_pruned_tree_does_not_look_short() -> None:
    """Paths of 64 first steps; at each step three of four are pruned, and each one left gets four
    children. With a weight of 1 - 4 where they part, the fit finds the true location."""
    random = np.random.default_rng(3)
    mu, sigma, step = 5.5, 0.3, 60
    weights: dict[tuple[int, bool], float] = {}

    def add(tokens: int, is_censored: bool, weight: float) -> None:
        weights[tokens, is_censored] = weights.get((tokens, is_censored), 0.0) + weight

    for _ in range(400):
        at, alive = 0, 64
        while alive:
            drawn = np.exp(mu + sigma * random.standard_t(3.5, 4000))
            lengths = random.choice(drawn[drawn > at], alive)  # each goes on from `at`
            if at:
                add(at, True, -float(alive))
            ends = lengths[lengths <= at + step]
            for tokens in ends:
                add(round(float(tokens)), False, 1.0)
            on = alive - len(ends)
            if on:
                add(at + step, True, float(on))
            at, alive = at + step, on // 4 * 4 if on >= 4 else 0
    keys = sorted(weights)
    found = fit_posterior(
        LengthPoints(
            logs=np.array([log(max(1, tokens)) for tokens, _ in keys]),
            ended=np.array([0.0 if cut else weights[tokens, cut] for tokens, cut in keys]),
            censored=np.array([weights[tokens, cut] if cut else 0.0 for tokens, cut in keys]),
        ),
        NOTHING,
    )
    assert exp(found.mu) == pytest.approx(exp(mu), rel=0.03)
    assert found.sigma == pytest.approx(sigma, rel=0.1)
