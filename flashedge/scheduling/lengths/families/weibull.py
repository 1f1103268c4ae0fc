"""The Weibull distribution: the chance of ending rises or falls with the tokens drawn."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from flashedge.scheduling.lengths.base import Floats
from flashedge.scheduling.lengths.families.log_scale import (
    change_variable,
    check_scale,
    standardize,
)


@dataclass(frozen=True, slots=True)
class Weibull:
    """P(X > x) = exp(−(x / scale)^shape)."""

    shape: float
    """Below 1 an output that goes on is ever less likely to end; above 1 ever more likely."""

    scale: float
    """Tokens that 63 % of the outputs do not exceed."""

    def __post_init__(self) -> None:
        check_scale("shape", self.shape)
        check_scale("scale", self.scale)

    def cdf(self, tokens: Floats) -> Floats:
        return np.asarray(-np.expm1(self.log_survival(tokens)))

    def logpdf(self, tokens: Floats) -> Floats:
        z = self._standardize(tokens)
        with np.errstate(over="ignore", invalid="ignore"):  # a density of 0 far in the tail
            return change_variable(z - np.exp(z), tokens, 1 / self.shape)

    def log_survival(self, tokens: Floats) -> Floats:
        with np.errstate(over="ignore"):
            return np.asarray(-np.exp(self._standardize(tokens)))

    def quantile(self, share: Floats) -> Floats:
        return np.asarray(self.scale * (-np.log1p(-np.asarray(share))) ** (1 / self.shape))

    def inverse_survival(self, share: Floats) -> Floats:
        return np.asarray(self.scale * (-np.log(share)) ** (1 / self.shape))

    def _standardize(self, tokens: Floats) -> Floats:
        return standardize(tokens, float(np.log(self.scale)), 1 / self.shape)
