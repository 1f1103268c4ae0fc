"""The gamma distribution."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy import special

from flashedge.scheduling.lengths.base import Floats
from flashedge.scheduling.lengths.families.log_scale import check_scale, take_logarithm

_SMALLEST = 1e-290
"""Share of outputs below which the incomplete gamma function loses its digits."""


@dataclass(frozen=True, slots=True)
class Gamma:
    """The density is in proportion to x^(shape − 1)·exp(−x / scale)."""

    shape: float
    """1 / the square of the coefficient of variation."""

    scale: float
    """Tokens. The mean is shape·scale."""

    def __post_init__(self) -> None:
        check_scale("shape", self.shape)
        check_scale("scale", self.scale)

    def cdf(self, tokens: Floats) -> Floats:
        return np.asarray(special.gammainc(self.shape, self._divide(tokens)))

    def logpdf(self, tokens: Floats) -> Floats:
        x = self._divide(tokens)
        logs = take_logarithm(x)
        density = np.full(x.shape, -np.inf)
        inside = np.isfinite(logs)
        density[inside] = (
            (self.shape - 1) * logs[inside]
            - x[inside]
            - special.gammaln(self.shape)
            - np.log(self.scale)
        )
        return density

    def log_survival(self, tokens: Floats) -> Floats:
        x = self._divide(tokens)
        share = special.gammaincc(self.shape, x)
        if (share > _SMALLEST).all():
            return np.asarray(np.log(share))
        with np.errstate(divide="ignore", invalid="ignore"):
            tail = self.shape * np.log(x) - x - special.gammaln(self.shape)
            tail -= np.log(x + 1 - self.shape)  # the first convergent of the continued fraction
            return np.where(share > _SMALLEST, np.log(share), np.where(x < np.inf, tail, -np.inf))

    def quantile(self, share: Floats) -> Floats:
        return np.asarray(self.scale * special.gammaincinv(self.shape, share))

    def inverse_survival(self, share: Floats) -> Floats:
        return np.asarray(self.scale * special.gammainccinv(self.shape, share))

    def _divide(self, tokens: Floats) -> Floats:
        return np.maximum(np.asarray(tokens, dtype=np.float64), 0) / self.scale
