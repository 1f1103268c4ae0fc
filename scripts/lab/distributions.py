"""Distributions of lengths that only comparisons need, and the fit of the product's."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy import special, stats

from flashedge.scheduling.lengths.distribution import NU, Floats, LogT

LEAST_SPREAD = 0.01
"""Scale of ln X where all lengths are equal, which no likelihood bounds."""


@dataclass(frozen=True, slots=True)
class LogNormal:
    """ln X = mu + sigma·Z, where Z is standard normal: log-t without its heavy tail."""

    mu: float
    sigma: float

    def log_survival(self, tokens: Floats) -> Floats:
        with np.errstate(divide="ignore"):
            z = (np.log(np.maximum(tokens, 0.0)) - self.mu) / self.sigma
        return np.asarray(special.log_ndtr(-z))

    def inverse_survival(self, share: Floats) -> Floats:
        with np.errstate(over="ignore"):  # infinite far in the tail
            return np.asarray(np.exp(self.mu - self.sigma * special.ndtri(share)))


@dataclass(frozen=True, slots=True)
class Point:
    """One length and no doubt, as schedulers before TIE predict it."""

    tokens: float

    def log_survival(self, tokens: Floats) -> Floats:
        return np.where(np.asarray(tokens) < self.tokens, 0.0, -np.inf)

    def inverse_survival(self, share: Floats) -> Floats:
        return np.full(np.shape(share), float(self.tokens))


def fit_log_t(lengths: NDArray[np.int64], is_cut: NDArray[np.bool_]) -> LogT:
    """Fit a log-t distribution by maximum likelihood, where a cut length is a lower bound.

    Ref: arXiv 2604.00499 §3.1, eq. (5) and (6), which leaves cut lengths out.
    """
    logs = np.log(lengths)
    sample = stats.CensoredData.right_censored(logs, is_cut)
    spread = max(LEAST_SPREAD, float(logs.std()))
    _, mu, sigma = stats.t.fit(sample, f0=NU, loc=float(np.median(logs)), scale=spread)
    return LogT(float(mu), max(LEAST_SPREAD, float(sigma)))
