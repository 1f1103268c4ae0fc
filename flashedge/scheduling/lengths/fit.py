"""Fit a family of distributions to lengths by censored maximum likelihood.

A length is censored if the output did not end by itself: it was cut at `max_tokens`, or it is a
path that a search pruned or cancelled. It gives only a lower bound, so its likelihood is
P(X > length) and that of an ended output is the density. Without this, what a search prunes would
look short.

Few lengths. The likelihood of one length, or of equal ones, has no maximum: it grows as the spread
shrinks. That of bounds alone has none either: it grows with the location. Two things hold the fit.

- The spread has a floor. Lengths are integers, so a length of c tokens says nothing of a spread
  below 1 / (√12·c), that of the rounding.
- A weak prior: the log-likelihood of the location m and spread s of ln X, as though a number of
  other lengths had been seen around c, with the standard deviation PRIOR_SPREAD:
  −w·[ln s + (PRIOR_SPREAD² + (m − ln c)²) / (2·s²)]. Here c is the median of the k lengths that
  ended, or the longest bound if none did, and w = `prior_weight` / max(1, k). So one length c gives
  a distribution around c with a spread of PRIOR_SPREAD / √2. Bounds alone count as though one more
  output had ended at about the longest. The prior is gone where the data can speak: among 50
  lengths it weighs 1/50 of one. A weight of 0 is maximum likelihood alone.

Ref: arXiv 2604.00499 §3.1, eq. (5) and (6). Censoring and the prior are ours.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import exp, isfinite, log, sqrt

import numpy as np
from numpy.typing import ArrayLike
from scipy import optimize

from flashedge.scheduling.lengths.base import Flags, Floats, LengthDistribution
from flashedge.scheduling.lengths.families.catalog import FAMILIES, NAMES, Family
from flashedge.scheduling.lengths.families.log_t import NU
from flashedge.scheduling.lengths.families.point import Point

PRIOR_SPREAD = 0.2
"""Standard deviation of the logarithm of a prompt's lengths. In the eight samples of each of 100
problems that come with the lab (`scripts/lab/benchmark/step_lengths.jsonl`) it is 0.199, pooled."""

_LONGEST_LOG = log(1e9)
_WIDEST = 10.0  # a spread of ln X
_NU_BOUNDS = (log(0.5), log(100.0))
_IMPOSSIBLE = 1e10  # what is minimized where the likelihood is 0


@dataclass(frozen=True, slots=True, eq=False)
class _Sample:
    lengths: Floats
    is_censored: Flags

    def compute_log_likelihood(self, distribution: LengthDistribution) -> float:
        ended = float(distribution.logpdf(self.lengths[~self.is_censored]).sum())
        if not self.is_censored.any():
            return ended
        return ended + float(distribution.log_survival(self.lengths[self.is_censored]).sum())


@dataclass(frozen=True, slots=True, kw_only=True)
class _Prior:
    """The weak prior of the module's docstring. It also draws ν towards 3.5 where ν is free."""

    centre: float  # the logarithm of c
    weight: float  # w

    def compute_log_density(self, location: float, spread: float, log_nu: float) -> float:
        away = (location - self.centre) ** 2 + PRIOR_SPREAD**2
        doubt = log(spread) + away / (2 * spread**2) + (log_nu - log(NU)) ** 2 / 2
        return -self.weight * doubt


def fit(
    name: str,
    lengths: ArrayLike,
    is_censored: ArrayLike | None = None,
    *,
    prior_weight: float = 1.0,
) -> LengthDistribution:
    """Fit the family of this name (`NAMES`) to lengths of one prompt's outputs.

    lengths: (num_outputs,) tokens. is_censored: (num_outputs,) whether a length is only a lower
    bound; None if none is. A bound of 0 tokens says nothing and is left out. prior_weight: of the
    weak prior, in lengths.

    "point" has no likelihood: its length is the restricted mean of the product-limit estimator,
    which is the plain mean where nothing is censored.

    The optimizer calls BLAS for matrices of two rows. On busy cores its threads wait for each other
    there, many times as long as the rest takes, so a process that fits often wants one thread
    (OPENBLAS_NUM_THREADS=1).

    Raises ValueError for an unknown name, no lengths, a length below 1 token, a negative prior
    weight, and for bounds alone with a prior weight of 0.
    """
    if name not in NAMES:
        raise ValueError(f"there is no family {name!r}; known: {', '.join(NAMES)}")
    sample = _read(lengths, is_censored)
    if name == "point":
        return Point(_compute_restricted_mean(sample))
    if prior_weight < 0:
        raise ValueError(f"the prior weight is {prior_weight}, but can't be negative")
    if prior_weight == 0 and sample.is_censored.all():
        raise ValueError("lower bounds alone have no maximum of likelihood; give a prior weight")
    return _search(FAMILIES[name], sample, prior_weight)


def log_likelihood(
    distribution: LengthDistribution, lengths: ArrayLike, is_censored: ArrayLike | None = None
) -> float:
    """Compute the censored log-likelihood of lengths. Raises ValueError as `fit` does."""
    return _read(lengths, is_censored).compute_log_likelihood(distribution)


def _search(family: Family, sample: _Sample, prior_weight: float) -> LengthDistribution:
    """Find the member of the family with the greatest likelihood and prior.

    Location and spread are searched for relative to those of the lengths, so that all steps of the
    optimizer are alike.
    """
    prior = _make_prior(sample, prior_weight)
    floor = exp(-prior.centre) / sqrt(12)
    first = max(2 * floor, float(np.std(np.log(sample.lengths)))) if family.has_spread else 1.0

    def read(values: Floats) -> tuple[float, float, float]:
        location, spread, log_nu = values.tolist()
        return prior.centre + first * location, first * exp(spread), log_nu

    def build(location: float, spread: float, log_nu: float) -> LengthDistribution:
        return family.build(location, spread, exp(log_nu))

    def measure(values: Floats) -> float:
        found = sample.compute_log_likelihood(build(*read(values)))
        found += prior.compute_log_density(*read(values))
        return -found / sample.lengths.size if isfinite(found) else _IMPOSSIBLE

    locations = ((-prior.centre - 1) / first, (_LONGEST_LOG - prior.centre) / first)
    spreads = (log(floor / first), log(_WIDEST / first)) if family.has_spread else (0.0, 0.0)
    start = np.array([0.0, 0.0, log(NU)])
    found = _minimize(measure, start, [locations, spreads, (log(NU), log(NU))])
    if family.has_nu:  # free once the others are near
        found = _minimize(measure, found, [locations, spreads, _NU_BOUNDS])
    return build(*read(found))


def _minimize(
    measure: Callable[[Floats], float], start: Floats, bounds: Sequence[tuple[float, float]]
) -> Floats:
    """Minimize with L-BFGS-B. Never ends above the start."""
    found = optimize.minimize(measure, start, method="L-BFGS-B", bounds=bounds)
    return np.asarray(found.x) if found.fun <= measure(start) else start


def _make_prior(sample: _Sample, weight: float) -> _Prior:
    ended = sample.lengths[~sample.is_censored]
    centre = float(np.median(ended) if ended.size else sample.lengths.max())
    return _Prior(centre=log(centre), weight=weight / max(1, ended.size))


def _read(lengths: ArrayLike, is_censored: ArrayLike | None) -> _Sample:
    tokens = np.asarray(lengths, dtype=np.float64)
    flags = (
        np.zeros(tokens.shape, dtype=np.bool_)
        if is_censored is None
        else np.asarray(is_censored, dtype=np.bool_)
    )
    if tokens.ndim != 1 or flags.shape != tokens.shape:
        raise ValueError(f"lengths of shape {tokens.shape} with flags of shape {flags.shape}")
    says = ~(flags & (tokens == 0))
    tokens, flags = tokens[says], flags[says]
    if not tokens.size:
        raise ValueError("there are no lengths to fit")
    if not (np.isfinite(tokens) & (tokens >= 1)).all():
        raise ValueError("a length must be finite, and at least one token")
    return _Sample(tokens, flags)


def _compute_restricted_mean(sample: _Sample) -> float:
    """Integrate the product-limit estimator (Kaplan and Meier's) up to the longest length."""
    order = np.lexsort((sample.is_censored, sample.lengths))  # at equal lengths the ended first
    lengths, ended = sample.lengths[order], ~sample.is_censored[order]
    at_risk = np.arange(lengths.size, 0, -1)
    survival = np.append(1.0, np.cumprod(1 - ended / at_risk)[:-1])
    return float(survival @ np.diff(lengths, prepend=0.0))
