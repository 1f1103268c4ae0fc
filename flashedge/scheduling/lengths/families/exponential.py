"""The exponential distribution: how much is left does not depend on what is drawn."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from flashedge.scheduling.lengths.base import Floats
from flashedge.scheduling.lengths.families.log_scale import check_scale


@dataclass(frozen=True, slots=True)
class Exponential:
    """Every token is the last one with the same chance."""

    mean: float
    """Tokens."""

    def __post_init__(self) -> None:
        check_scale("mean", self.mean)

    def cdf(self, tokens: Floats) -> Floats:
        return np.asarray(-np.expm1(self.log_survival(tokens)))

    def logpdf(self, tokens: Floats) -> Floats:
        tokens = np.asarray(tokens, dtype=np.float64)
        return np.where(tokens > 0, -tokens / self.mean - np.log(self.mean), -np.inf)

    def log_survival(self, tokens: Floats) -> Floats:
        return -np.maximum(np.asarray(tokens, dtype=np.float64), 0) / self.mean

    def quantile(self, share: Floats) -> Floats:
        return np.asarray(-self.mean * np.log1p(-np.asarray(share)))

    def inverse_survival(self, share: Floats) -> Floats:
        return np.asarray(-self.mean * np.log(share))
