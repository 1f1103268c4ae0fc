"""How long an output will be: a distribution, and the figures of a length that a limit cuts.

An output is one answer to one prompt, or one path of a search. Its end is sampled like any other
token. Lengths are integers, but the distributions are continuous, as in the paper.

The length is X̃ = min(X, L), where L is `max_tokens`. Given that the output has outlived its first
`drawn` tokens, P(X > x | X > drawn) = P(X > x) / P(X > drawn). The paper predicts once, before the
first token (App. G).

The paper integrates x·f(x) (App. B) by Monte Carlo. The quadrature here uses that
E[X̃] = ∫₀ᴸ P(X > x) dx, which is the same by parts, and needs neither the density nor a special
case at the limit. From the value at risk upwards the same integral gives the conditional one:
CVaR = VaR + ∫_VaR^L P(X > x) dx / (1 − α). It is L where VaR reaches L, as eq. (37) defines it.

Ref: arXiv 2604.00499 §3, §4, eq. (7) to (10), App. B.
"""

from dataclasses import dataclass
from math import isfinite
from typing import Protocol

import numpy as np
from numpy.typing import NDArray
from scipy import special

Floats = NDArray[np.float64]
NU = 3.5
"""Degrees of freedom that fit best when they are the same for all prompts (App. D.3)."""


class LengthDistribution(Protocol):
    """Tokens of one output before any limit cuts it. Immutable and hashable. It has the survival
    function and no cdf, because 1 − cdf rounds to 0 far in the tail."""

    def __hash__(self) -> int: ...

    def log_survival(self, tokens: Floats) -> Floats:
        """The logarithm of the probability of more tokens, elementwise."""
        ...

    def inverse_survival(self, share: Floats) -> Floats:
        """The tokens that a share in (0, 1) of the outputs exceeds, elementwise."""
        ...


@dataclass(frozen=True, slots=True)
class LogT:
    """ln X = mu + sigma·T, where T has Student's t-distribution. X has an expectation only below a
    limit. Raises ValueError for impossible parameters. Ref: arXiv 2604.00499 §3.1, eq. (3), (4)."""

    mu: float
    """Median of ln X."""
    sigma: float
    """Scale of ln X, positive."""
    nu: float = NU
    """Degrees of freedom. Fewer mean a heavier tail."""

    def __post_init__(self) -> None:
        if not (isfinite(self.mu) and 0 < self.sigma < np.inf and 0 < self.nu < np.inf):
            raise ValueError(f"{self} must be finite, its scale and nu positive")

    def log_survival(self, tokens: Floats) -> Floats:
        with np.errstate(divide="ignore"):  # ln 0 at both ends
            z = (np.log(np.maximum(tokens, 0.0)) - self.mu) / self.sigma
            return np.asarray(np.log(special.stdtr(self.nu, -z)))

    def inverse_survival(self, share: Floats) -> Floats:
        with np.errstate(over="ignore"):  # infinite far in the tail
            return np.asarray(np.exp(self.mu - self.sigma * special.stdtrit(self.nu, share)))


# ---------------------------------------------------------------- figures

CONFIDENCE = 0.9
"""α: the value at risk is the tokens that this share of the outputs does not exceed."""
LEAST_LOG_SURVIVAL = -600.0
"""Log survival at which an output has outlived its distribution: double precision ends soon after,
and so unlikely an output shows that the distribution is wrong."""

_LISTED = [1 - 1e-4, 1 - 1e-3, 0.99, 0.9, 0.75, 0.6, 0.5, 0.4, 0.25, 1 - CONFIDENCE, 0.03, 0.01]
_SHARES = np.array(_LISTED + [10.0**-power for power in range(3, 9)])
"""Shares of outputs that are longer, at which the integral is split. Between two of them P(X > x)
is smooth for any scale of the distribution."""
_MEDIAN, _RISK = _LISTED.index(0.5), _LISTED.index(1 - CONFIDENCE)
_NODES, _WEIGHTS = np.polynomial.legendre.leggauss(8)  # 8 points on each piece, on [-1, 1]
_NODES, _WEIGHTS = (_NODES + 1) / 2, _WEIGHTS / 2  # on [0, 1]
_SHORTEST = 1e-9
"""Tokens that stand for 0, whose logarithm is infinite."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TailFigures:
    """Figures of one output's length, in tokens of the whole output, at most its limit."""

    expected: float
    median: float
    value_at_risk: float
    """The tokens that a share α of the outputs does not exceed."""
    conditional_value_at_risk: float
    """Mean of the longest share 1 − α of the outputs."""


def compute_figures(
    distribution: LengthDistribution, max_tokens: float, *, drawn: float = 0
) -> TailFigures:
    """Compute the figures by Gauss-Legendre quadrature on pieces of ln x. max_tokens: the limit L,
    positive. drawn: tokens so far. An output that has outlived its distribution is expected to
    reach the limit."""
    log_outlived = float(distribution.log_survival(np.asarray(float(drawn))))
    if drawn >= max_tokens or not log_outlived > LEAST_LOG_SURVIVAL:
        return TailFigures(**dict.fromkeys(TailFigures.__annotations__, max_tokens))
    points = distribution.inverse_survival(_SHARES * np.exp(log_outlived))
    edges = np.append(np.clip(points, drawn, max_tokens), max_tokens)  # (num_pieces + 1,)
    logs = np.log(np.maximum(edges, _SHORTEST))
    widths = np.diff(logs)[:, None]
    tokens = np.exp(logs[:-1, None] + widths * _NODES)  # (num_pieces, num_nodes)
    survival = np.exp(distribution.log_survival(np.maximum(tokens, drawn)) - log_outlived)
    areas = survival * tokens * widths @ _WEIGHTS  # ∫ P(X > x | X > drawn) dx of each piece
    value_at_risk = float(edges[_RISK])
    return TailFigures(
        expected=float(edges[0] + areas.sum()),  # P(X > x) is 1, but for 1e-4, below the first
        median=float(edges[_MEDIAN]),
        value_at_risk=value_at_risk,
        conditional_value_at_risk=value_at_risk + float(areas[_RISK:].sum()) / (1 - CONFIDENCE),
    )
