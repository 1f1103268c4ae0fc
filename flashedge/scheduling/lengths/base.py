"""What every distribution of an output's length can do.

An output is one answer to one prompt, or one path of a search. Its length is uncertain, since the
end of the sequence is sampled like any other token. So a prompt has a distribution of lengths.

Ref: arXiv 2604.00499 §3.
"""

from __future__ import annotations

from typing import Protocol

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]


class LengthDistribution(Protocol):
    """Of the tokens of one output, before any limit cuts it. Immutable and hashable."""

    def cdf(self, tokens: Floats) -> Floats:
        """The probability that an output has at most so many tokens, elementwise."""
        ...

    def logpdf(self, tokens: Floats) -> Floats:
        """The logarithm of the density, elementwise."""
        ...

    def quantile(self, share: Floats) -> Floats:
        """The tokens that a share in (0, 1) of the outputs does not exceed, elementwise."""
        ...
