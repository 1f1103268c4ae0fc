"""Kolmogorov and Smirnov's test: do lengths look as if drawn from a distribution?

The paper calls a fit adequate where p > 0.05, and counts the prompts for which it is (Table 1). It
compares integers with a continuous distribution and lets the test's own p-value stand; so does
`compute_fixed_p_value`. Two things are wrong with that, in opposite directions:

- The distribution was fitted to the same lengths, so it lies closer to them than the true one
  does. The p-value is too large (Lilliefors).
- Equal integers make steps in the empirical distribution that no continuous one follows. The
  p-value is too small where many lengths are equal.

`bootstrap_p_value` answers both: it draws samples from the fitted distribution, rounds them to
integers, fits the family anew to each, and counts how many lie as far from their fit as the lengths
do from theirs.

The lengths are those of outputs that ended by themselves. Censored ones have no place here.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import sqrt

import numpy as np
from numpy.typing import ArrayLike
from scipy import special

from flashedge.scheduling.lengths.base import LengthDistribution
from flashedge.scheduling.lengths.fit import fit

_LONGEST = 1e9  # tokens; the longest draws of a heavy tail are infinite


@dataclass(frozen=True, slots=True, kw_only=True)
class KsTest:
    """A family, fitted to lengths and compared with them."""

    distribution: LengthDistribution
    """The fitted one."""

    distance: float
    """The largest difference between the two distribution functions, in [0, 1]."""

    fixed_p_value: float
    """As if the distribution had been fixed before the lengths were drawn: the paper's. It is
    optimistic."""

    bootstrap_p_value: float | None
    """That of the parametric bootstrap, whose smallest value is 1 / (draws + 1). None without
    draws."""


def run_ks_test(
    name: str, lengths: ArrayLike, *, draws: int = 0, seed: int = 0, prior_weight: float = 0.0
) -> KsTest:
    """Fit the family of this name and test the fit. draws: of the bootstrap.

    Raises ValueError as `fit` does.
    """
    distribution = fit(name, lengths, prior_weight=prior_weight)
    distance = measure_distance(distribution, lengths)
    count = np.size(lengths)
    p_value = (
        bootstrap_p_value(
            name, distribution, distance, count, draws=draws, seed=seed, prior_weight=prior_weight
        )
        if draws
        else None
    )
    return KsTest(
        distribution=distribution,
        distance=distance,
        fixed_p_value=compute_fixed_p_value(distance, count),
        bootstrap_p_value=p_value,
    )


def measure_distance(distribution: LengthDistribution, lengths: ArrayLike) -> float:
    """The largest difference between the distribution's cdf and that of the lengths, on both sides
    of each step."""
    tokens = np.sort(np.asarray(lengths, dtype=np.float64))
    below = np.arange(tokens.size) / tokens.size
    expected = distribution.cdf(tokens)
    return float(max((expected - below).max(), (below + 1 / tokens.size - expected).max()))


def compute_fixed_p_value(distance: float, count: int) -> float:
    """The chance of at least this distance for `count` lengths of a distribution that was fixed
    beforehand.

    Exact from a distance of 1/2 on; below by Kolmogorov's limit with Vrbik's correction, which is
    within 0.004 from 8 lengths on. Ref: J. Vrbik, Pioneer J. Theor. Appl. Stat. 15 (2018).
    """
    if distance >= 0.5:
        return min(1.0, 2 * float(special.smirnov(count, distance)))
    root = sqrt(count)
    scaled = root * distance
    return float(special.kolmogorov(scaled + 1 / (6 * root) + (scaled - 1) / (4 * count)))


def bootstrap_p_value(
    name: str,
    distribution: LengthDistribution,
    distance: float,
    count: int,
    *,
    draws: int,
    seed: int,
    prior_weight: float = 0.0,
) -> float:
    """The share of samples of the distribution, rounded to integers, that lie at least `distance`
    from the member of the family that is fitted to them. The given lengths count as one of them.

    name: of the family that `distribution` was fitted from. count: lengths in a sample.
    """
    random = np.random.default_rng(seed)
    farther = 0
    for _ in range(draws):
        drawn = distribution.inverse_survival(1 - random.random(count))
        sample = np.clip(np.rint(drawn), 1, _LONGEST)
        fitted = fit(name, sample, prior_weight=prior_weight)
        farther += measure_distance(fitted, sample) >= distance - 1e-12
    return (farther + 1) / (draws + 1)
