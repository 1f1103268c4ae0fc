"""The point estimate: one length and no doubt, as schedulers before TIE predict it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from flashedge.scheduling.lengths.base import Floats
from flashedge.scheduling.lengths.families.log_scale import check_scale


@dataclass(frozen=True, slots=True)
class Point:
    """Every output has the same length. What orders by point estimates orders by these."""

    tokens: float

    def __post_init__(self) -> None:
        check_scale("tokens", self.tokens)

    def cdf(self, tokens: Floats) -> Floats:
        return np.where(np.asarray(tokens) >= self.tokens, 1.0, 0.0)

    def logpdf(self, tokens: Floats) -> Floats:
        """The logarithm of the probability, since a point has no density."""
        return np.where(np.asarray(tokens) == self.tokens, 0.0, -np.inf)

    def log_survival(self, tokens: Floats) -> Floats:
        return np.where(np.asarray(tokens) < self.tokens, 0.0, -np.inf)

    def quantile(self, share: Floats) -> Floats:
        return np.full(np.shape(share), float(self.tokens))

    def inverse_survival(self, share: Floats) -> Floats:
        return np.full(np.shape(share), float(self.tokens))
