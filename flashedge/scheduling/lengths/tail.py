"""Expectation, value at risk and conditional value at risk of a length that a limit cuts.

The length is X̃ = min(X, L), where L is `max_tokens`, given X > drawn. All figures are tokens of
the whole output, those that are drawn included.

The paper integrates x·f(x) (App. B) by Monte Carlo. The quadrature here uses that
E[X̃] = ∫₀ᴸ P(X > x) dx, which is the same by parts, and needs neither the density nor a special
case at the limit. From the value at risk upwards the same integral gives the conditional one:
CVaR = VaR + ∫_VaR^L P(X > x) dx / (1 − α). It is L where VaR reaches L, as eq. (37) defines it.

Ref: arXiv 2604.00499 §4, eq. (7) to (10), App. B.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from flashedge.scheduling.lengths.base import Floats, LengthDistribution
from flashedge.scheduling.lengths.conditional import condition, is_outlived

CONFIDENCE = 0.9
"""α: the value at risk is the tokens that this share of the outputs does not exceed."""

SAMPLES = 10_000
"""Samples by which the paper estimates the figures."""

_SHARES = np.array(
    [1 - 1e-4, 1 - 1e-3, 0.99, 0.9, 0.75, 0.6, 0.4, 0.25, 0.1, 0.03, 0.01]
    + [10.0**-power for power in range(3, 9)]
)
"""Shares of outputs that are longer, at which the integral is split. Between two of them P(X > x)
is smooth whatever the scale of the distribution."""

_NODES, _WEIGHTS = np.polynomial.legendre.leggauss(8)
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

    cut_share: float
    """Probability that the limit cuts the output, in [0, 1]."""


def make_certain_figures(tokens: float, *, cut_share: float = 0.0) -> TailFigures:
    """The figures of an output that has this length for certain."""
    return TailFigures(
        expected=tokens,
        median=tokens,
        value_at_risk=tokens,
        conditional_value_at_risk=tokens,
        cut_share=cut_share,
    )


def make_unknown_figures(max_tokens: float) -> TailFigures:
    """The figures of an output of which nothing is known: it counts as long as its limit, so that
    requests with a prediction go first (§5)."""
    return make_certain_figures(max_tokens, cut_share=1.0)


def compute_figures(
    distribution: LengthDistribution,
    max_tokens: float,
    *,
    drawn: float = 0,
    confidence: float = CONFIDENCE,
) -> TailFigures:
    """Compute the figures by quadrature: Gauss and Legendre's on pieces of ln x.

    max_tokens: the limit L, positive. drawn: tokens so far. confidence: α in (0, 1). An output
    that the distribution says can't have gone on is one of which nothing is known. Raises
    ValueError for arguments out of range.
    """
    _check(max_tokens, drawn, confidence)
    if drawn >= max_tokens or is_outlived(distribution, drawn):
        return make_unknown_figures(max_tokens)
    rest = condition(distribution, drawn)
    shares = np.sort(np.append(_SHARES, [0.5, 1 - confidence]))[::-1]
    edges = np.minimum(rest.inverse_survival(shares), max_tokens)
    risk = int(np.searchsorted(-shares, confidence - 1))
    areas = _integrate_survival(rest, np.append(edges, max_tokens))
    value_at_risk = float(edges[risk])
    return TailFigures(
        expected=float(edges[0] + areas.sum()),  # P(X > x) is 1, but for 1e-4, below the first
        median=float(edges[np.searchsorted(-shares, -0.5)]),
        value_at_risk=value_at_risk,
        conditional_value_at_risk=value_at_risk + float(areas[risk:].sum()) / (1 - confidence),
        cut_share=float(np.exp(rest.log_survival(np.asarray(float(max_tokens))))),
    )


def _integrate_survival(distribution: LengthDistribution, edges: Floats) -> Floats:
    """Integrate P(X > x) between neighbouring edges.

    edges: (num_pieces + 1,) tokens that never fall. Returns (num_pieces,) tokens.
    """
    logs = np.log(np.maximum(edges, _SHORTEST))
    widths = np.diff(logs)[:, None]
    tokens = np.exp(logs[:-1, None] + widths * _NODES)  # (num_pieces, num_nodes)
    areas = np.exp(distribution.log_survival(tokens)) * tokens * widths @ _WEIGHTS
    return np.asarray(areas, dtype=np.float64)


def sample_figures(
    distribution: LengthDistribution,
    max_tokens: float,
    *,
    seed: int,
    drawn: float = 0,
    confidence: float = CONFIDENCE,
    samples: int = SAMPLES,
) -> TailFigures:
    """Estimate the figures of `compute_figures` from samples, as the paper does.

    Equal seeds draw equal samples. Raises ValueError for arguments out of range.
    """
    _check(max_tokens, drawn, confidence)
    if drawn >= max_tokens or is_outlived(distribution, drawn):
        return make_unknown_figures(max_tokens)
    shares = 1 - np.random.default_rng(seed).random(samples)  # in (0, 1]
    whole = condition(distribution, drawn).inverse_survival(np.minimum(shares, 1 - 2**-53))
    lengths = np.sort(np.minimum(whole, max_tokens))
    longest = lengths[min(round(confidence * samples), samples - 1) :]
    return TailFigures(
        expected=float(lengths.mean()),
        median=float(np.quantile(lengths, 0.5)),
        value_at_risk=float(np.quantile(lengths, confidence)),
        conditional_value_at_risk=float(longest.mean()),
        cut_share=float((whole > max_tokens).mean()),
    )


def _check(max_tokens: float, drawn: float, confidence: float) -> None:
    if not (np.isfinite(max_tokens) and max_tokens > 0):
        raise ValueError(f"max_tokens is {max_tokens}, but must be positive and finite")
    if drawn < 0:
        raise ValueError(f"an output can't have drawn {drawn} tokens")
    if not 0 < confidence < 1:
        raise ValueError(f"the confidence is {confidence}, but must be in (0, 1)")
