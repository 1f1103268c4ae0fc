"""What a predictor with realistic errors says of prompts whose distributions are known.

The predictor is taken to be the best for its knowledge: it says E[mu | what it sees], and so for
log sigma. With a coefficient of determination R2 that is the truth drawn towards the mean of the
workload that it was trained on, with noise. The paper's text predictor has an R2 of 0.82 for mu and
0.76 for sigma (arXiv 2604.00499 §3.2).

All rivals read the same two predictions, so none has a better encoder or more training data.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from flashedge.scheduling.lengths.distribution import LengthDistribution, LogT, compute_figures
from scripts.lab.benchmark.requests.prompts import Floats, LengthPrior, Prompts

LOG_NORMAL_SPREAD = 1.34
"""Standard deviation that a log-normal fit finds for a log-t of sigma 1 and nu 3.5: the geometric
mean over many prompts of 20 samples each, which is what a predictor of it would learn."""

NU_NOISE = 0.2
"""Standard deviation of the error of log nu where nu is predicted as well."""

_RANK_NODES = 64
_RANK_SAMPLES = 20_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Quality:
    """How much of the parameters' variance over prompts a predictor explains, each in (0, 1]."""

    mu: float = 0.82
    sigma: float = 0.76
    """Of log sigma."""


PAPER = Quality()


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ExpectedWork:
    """What is expected of each request's length, in tokens. Both are (requests,)."""

    expected: Floats
    tail: Floats
    """Conditional value at risk: the mean of the longest tenth."""

    @classmethod
    def of_points(cls, tokens: Floats) -> ExpectedWork:
        """Of predictions that are certain."""
        return cls(expected=tokens, tail=tokens)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Predictions:
    """Predicted parameters of requests."""

    mu: Floats
    sigma: Floats
    nu: Floats
    """Predicted degrees of freedom, of use only where they are not fixed."""

    trained_on: LengthPrior
    max_tokens: int

    def list_points(self) -> Floats:
        """The predicted mean of the length's logarithm, as tokens: a point estimate (SSJF)."""
        points: Floats = np.minimum(np.exp(self.mu), self.max_tokens)
        return points

    def list_ranks(self, nu: float) -> Floats:
        """The expected rank among outputs of the training workload, in [0, 1]: what a ranking loss
        learns (LTR)."""
        draw = np.random.default_rng(0)
        mu, sigma = self.trained_on.draw_parameters(_RANK_SAMPLES, draw)
        others = np.sort(self.trained_on.draw_lengths(mu, sigma, draw)[:, 0])
        lengths = spread_lengths(self.mu, self.sigma, nu, self.max_tokens)
        return np.asarray(np.searchsorted(others, lengths).mean(axis=1) / len(others))


def predict(prompts: Prompts, trained_on: LengthPrior, quality: Quality, seed: int) -> Predictions:
    """Predict the parameters of prompts with errors of this size."""
    draw = np.random.default_rng([seed, 77])
    log_sigma = np.log(np.maximum(prompts.sigma, 1e-6))
    mu = regress(prompts.mu, trained_on.mu, trained_on.mu_spread, quality.mu, draw)
    spread = trained_on.sigma_spread
    log_sigma = regress(log_sigma, np.log(trained_on.sigma), spread, quality.sigma, draw)
    return Predictions(
        mu=mu,
        sigma=np.exp(log_sigma),
        nu=prompts.nu * np.exp(NU_NOISE * draw.standard_normal(len(prompts))),
        trained_on=trained_on,
        max_tokens=prompts.max_tokens,
    )


def regress(
    values: Floats, mean: float, spread: float, share: float, draw: np.random.Generator
) -> Floats:
    """The conditional mean of normal values, of whose variance this share is explained."""
    noise = draw.standard_normal(len(values))
    error = spread * (share * (1 - share)) ** 0.5 * noise
    predicted: Floats = mean + share * (values - mean) + error
    return predicted


def tabulate(distributions: Iterable[LengthDistribution], max_tokens: int) -> ExpectedWork:
    """The product's own figures of distributions that a limit cuts."""
    found = [compute_figures(one, max_tokens) for one in distributions]
    return ExpectedWork(
        expected=np.array([figures.expected for figures in found]),
        tail=np.array([figures.conditional_value_at_risk for figures in found]),
    )


def spread_lengths(mu: Floats, sigma: Floats, nu: float, max_tokens: int) -> Floats:
    """(requests, nodes) lengths at even quantiles of each request's log-t distribution."""
    shares = (np.arange(_RANK_NODES) + 0.5) / _RANK_NODES
    logs = np.log(LogT(0.0, 1.0, nu).inverse_survival(1 - shares))
    longest = np.log(max_tokens)
    lengths: Floats = np.exp(np.minimum(mu[:, None] + sigma[:, None] * logs, longest))
    return lengths
