"""The log-normal distribution: the log-t distribution without its heavy tail."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy import special

from flashedge.scheduling.lengths.base import Floats
from flashedge.scheduling.lengths.families.log_scale import (
    change_variable,
    check_location,
    check_scale,
    standardize,
)


@dataclass(frozen=True, slots=True)
class LogNormal:
    """ln X = mu + sigma·Z, where Z has the standard normal distribution."""

    mu: float
    """Mean of ln X."""

    sigma: float
    """Standard deviation of ln X, positive."""

    def __post_init__(self) -> None:
        check_location("mu", self.mu)
        check_scale("sigma", self.sigma)

    def cdf(self, tokens: Floats) -> Floats:
        return np.asarray(special.ndtr(standardize(tokens, self.mu, self.sigma)))

    def logpdf(self, tokens: Floats) -> Floats:
        z = standardize(tokens, self.mu, self.sigma)
        return change_variable(-0.5 * (z * z + np.log(2 * np.pi)), tokens, self.sigma)

    def log_survival(self, tokens: Floats) -> Floats:
        return np.asarray(special.log_ndtr(-standardize(tokens, self.mu, self.sigma)))

    def quantile(self, share: Floats) -> Floats:
        with np.errstate(over="ignore"):  # infinite far in the tail
            return np.asarray(np.exp(self.mu + self.sigma * special.ndtri(share)))

    def inverse_survival(self, share: Floats) -> Floats:
        with np.errstate(over="ignore"):  # infinite far in the tail
            return np.asarray(np.exp(self.mu - self.sigma * special.ndtri(share)))
