"""How long an output will be, as a distribution.

An output is one answer to one prompt, or one path of a search. Its end is sampled like any other
token. Lengths are integers, but the distributions are continuous, as in the paper.

Ref: arXiv 2604.00499 §3.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray
from scipy import special

Floats = NDArray[np.float64]
NU = 3.5
"""Degrees of freedom that fit best when they are the same for all prompts (App. D.3)."""


class LengthDistribution(Protocol):
    """Tokens of one output before any limit cuts it. Immutable and hashable. Far in the tail, where
    outputs with many tokens are, 1 − cdf is rounded to 0, so it has the survival function."""

    def __hash__(self) -> int: ...

    def log_survival(self, tokens: Floats) -> Floats:
        """The logarithm of the probability of more tokens, elementwise."""
        ...

    def inverse_survival(self, share: Floats) -> Floats:
        """The tokens that a share in (0, 1) of the outputs exceeds, elementwise."""
        ...


@dataclass(frozen=True, slots=True)
class LogT:
    """ln X = mu + sigma·T, where T has Student's t-distribution. It has an expectation only below a
    limit (`tail.py`). Ref: arXiv 2604.00499 §3.1, eq. (3) and (4)."""

    mu: float
    """Median of ln X."""

    sigma: float
    """Scale of ln X, positive."""

    nu: float = NU
    """Degrees of freedom. Fewer mean a heavier tail."""

    def log_survival(self, tokens: Floats) -> Floats:
        with np.errstate(divide="ignore"):  # ln 0 at both ends
            z = (np.log(np.maximum(tokens, 0.0)) - self.mu) / self.sigma
            return np.asarray(np.log(special.stdtr(self.nu, -z)))

    def inverse_survival(self, share: Floats) -> Floats:
        with np.errstate(over="ignore"):  # infinite far in the tail
            return np.asarray(np.exp(self.mu - self.sigma * special.stdtrit(self.nu, share)))
