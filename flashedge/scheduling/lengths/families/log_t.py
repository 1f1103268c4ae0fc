"""The log-t distribution: heavy-tailed, and the paper's choice for the lengths of outputs."""

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

NU = 3.5
"""Degrees of freedom that fit best when they are the same for all prompts (App. D.3)."""


@dataclass(frozen=True, slots=True)
class LogT:
    """ln X = mu + sigma·T, where T has Student's t-distribution.

    Its mean is infinite, so it has an expectation only below a limit (`tail.py`).

    Ref: arXiv 2604.00499 §3.1, eq. (3) and (4).
    """

    mu: float
    """Median of ln X."""

    sigma: float
    """Scale of ln X, positive."""

    nu: float = NU
    """Degrees of freedom. Fewer mean a heavier tail."""

    def __post_init__(self) -> None:
        check_location("mu", self.mu)
        check_scale("sigma", self.sigma)
        check_scale("nu", self.nu)

    def cdf(self, tokens: Floats) -> Floats:
        return np.asarray(special.stdtr(self.nu, standardize(tokens, self.mu, self.sigma)))

    def logpdf(self, tokens: Floats) -> Floats:
        z = standardize(tokens, self.mu, self.sigma)
        half = (self.nu + 1) / 2
        constant = special.gammaln(half) - special.gammaln(self.nu / 2)
        density = constant - 0.5 * np.log(self.nu * np.pi) - half * np.log1p(z * z / self.nu)
        return change_variable(density, tokens, self.sigma)

    def log_survival(self, tokens: Floats) -> Floats:
        z = standardize(tokens, self.mu, self.sigma)
        with np.errstate(divide="ignore"):  # ln 0 at infinity
            return np.asarray(np.log(special.stdtr(self.nu, -z)))

    def quantile(self, share: Floats) -> Floats:
        with np.errstate(over="ignore"):  # infinite far in the tail
            return np.asarray(np.exp(self.mu + self.sigma * special.stdtrit(self.nu, share)))

    def inverse_survival(self, share: Floats) -> Floats:
        with np.errstate(over="ignore"):  # infinite far in the tail
            return np.asarray(np.exp(self.mu - self.sigma * special.stdtrit(self.nu, share)))
