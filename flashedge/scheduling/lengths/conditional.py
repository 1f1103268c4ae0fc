"""The distribution of a length, given the tokens that the output has drawn already.

The paper predicts once, before the first token, and names this as future work (App. G). An output
that goes on after `drawn` tokens is longer than `drawn`, so the rest of the distribution is scaled
up: P(X > x | X > drawn) = P(X > x) / P(X > drawn).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from flashedge.scheduling.lengths.base import Floats, LengthDistribution

LEAST_LOG_SURVIVAL = -600.0
"""Below it double precision loses the tail of the distribution. A share of e^-600 of the outputs
is none: the distribution is wrong about this one."""


def is_outlived(distribution: LengthDistribution, drawn: float) -> bool:
    """Whether the distribution says that an output can't have gone on after `drawn` tokens."""
    survival = float(distribution.log_survival(np.asarray(drawn, dtype=np.float64)))
    return not survival > LEAST_LOG_SURVIVAL


def condition(distribution: LengthDistribution, drawn: float) -> LengthDistribution:
    """Condition a distribution on more than `drawn` tokens. The length stays that of the whole
    output, so what is left is its length minus `drawn`.

    Raises ValueError if `drawn` is negative, or if the distribution is outlived.
    """
    if drawn < 0:
        raise ValueError(f"an output can't have drawn {drawn} tokens")
    if drawn == 0:
        return distribution
    if isinstance(distribution, Conditional):  # conditioned twice is conditioned on the longer
        return condition(distribution.whole, max(drawn, distribution.drawn))
    if is_outlived(distribution, drawn):
        raise ValueError(f"{distribution} has no outputs of more than {drawn} tokens")
    return Conditional(whole=distribution, drawn=drawn)


@dataclass(frozen=True, slots=True, kw_only=True)
class Conditional:
    """A distribution given that the output goes on. `condition` makes it."""

    whole: LengthDistribution
    """Before the first token."""

    drawn: float
    """Tokens so far. The length is greater."""

    def cdf(self, tokens: Floats) -> Floats:
        return np.asarray(-np.expm1(self.log_survival(tokens)))

    def logpdf(self, tokens: Floats) -> Floats:
        density = self.whole.logpdf(tokens) - self._log_survival_here()
        return np.where(np.asarray(tokens) > self.drawn, density, -np.inf)

    def log_survival(self, tokens: Floats) -> Floats:
        longer = self.whole.log_survival(np.maximum(tokens, self.drawn))
        return longer - self._log_survival_here()

    def quantile(self, share: Floats) -> Floats:
        return self.inverse_survival(1 - np.asarray(share))

    def inverse_survival(self, share: Floats) -> Floats:
        tokens = self.whole.inverse_survival(share * np.exp(self._log_survival_here()))
        return np.maximum(tokens, self.drawn)

    def _log_survival_here(self) -> Floats:
        return self.whole.log_survival(np.asarray(self.drawn, dtype=np.float64))
