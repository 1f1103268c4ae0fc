"""What every distribution of an output's length can do.

An output is one answer to one prompt, or one path of a search. Its length is uncertain, since the
end of the sequence is sampled like any other token. So a prompt has a distribution of lengths.

Lengths are integers, but the distributions are continuous, as in the paper. The survival functions
stand beside `cdf` and `quantile` because 1 − cdf is rounded to 0 far in the tail, and an output
that has already drawn many tokens lives there.

Ref: arXiv 2604.00499 §3.
"""

from __future__ import annotations

from typing import Protocol

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Flags = NDArray[np.bool_]


class LengthDistribution(Protocol):
    """Of the tokens of one output, before any limit cuts it. Immutable and hashable."""

    def __hash__(self) -> int: ...

    def cdf(self, tokens: Floats) -> Floats:
        """The probability that an output has at most so many tokens, elementwise."""
        ...

    def logpdf(self, tokens: Floats) -> Floats:
        """The logarithm of the density, elementwise."""
        ...

    def log_survival(self, tokens: Floats) -> Floats:
        """The logarithm of the probability of more tokens, elementwise. Exact in the tail."""
        ...

    def quantile(self, share: Floats) -> Floats:
        """The tokens that a share in (0, 1) of the outputs does not exceed, elementwise."""
        ...

    def inverse_survival(self, share: Floats) -> Floats:
        """The tokens that a share in (0, 1) of the outputs exceeds, elementwise. It is
        quantile(1 - share), exact in the tail."""
        ...
