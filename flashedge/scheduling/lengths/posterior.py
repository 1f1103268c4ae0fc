"""Fits a log-t distribution to few outputs, with a prior that comes from similar ones.

The prior of mu is a t-distribution, so that it gives way to a prompt that is unlike all others;
that of ln sigma is normal. Without outputs the fit is the prior's centre; with many the prior no
longer matters. Censored outputs count as longer than what is known of them.

Sigma is fitted as though mu had been integrated out (Laplace's approximation), since a mu that is
fitted to two or three outputs would make them look closer together than they are.

Ref: arXiv 2604.00499 §3.1, whose fit has no prior and needs about 20 outputs of each prompt.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import exp, hypot, log, pi, sqrt
from typing import NamedTuple

import numpy as np
from scipy import special

from flashedge.scheduling.lengths.base import Floats
from flashedge.scheduling.lengths.families.log_t import NU, LogT

MIN_SIGMA, MAX_SIGMA = 0.02, 4.0
"""Bounds of a fitted sigma. Equal lengths alone would make it 0."""
MAX_STEPS = 60
TOLERANCE = 1e-7
LOCATION_VARIANCE = (NU + 3) / (NU + 1)
"""Variance of mu's estimate from one output, in units of sigma². The inverse Fisher information."""
LOG_SIGMA_VARIANCE = (NU + 3) / (2 * NU)
"""Variance of the estimate of ln sigma from one output."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Prior:
    """What is assumed before any output is known."""

    mu: float
    mu_sd: float
    """Scale of mu around `mu`, positive."""

    sigma: float
    log_sigma_sd: float
    """Standard deviation of ln sigma around ln `sigma`, positive."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LengthPoints:
    """Logarithms of lengths with weights."""

    logs: Floats
    """(num_points,) ln tokens."""

    ended: Floats
    """(num_points,) outputs that ended there."""

    censored: Floats
    """(num_points,) outputs that went on from there. May be negative (`OutputLengths`)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Posterior:
    """The best mu and sigma, and how sure mu is."""

    mu: float
    sigma: float
    mu_variance: float
    """Variance of mu given the outputs and the prior."""

    @property
    def distribution(self) -> LogT:
        """Of a further output, whose location is as unsure as `mu_variance` says."""
        return LogT(self.mu, sqrt(self.sigma**2 + self.mu_variance))


def fit_posterior(points: LengthPoints, prior: Prior) -> Posterior:
    """Find the mu and sigma that are most likely after the points and the prior.

    Newton's method in (mu, ln sigma). A step that would not help is drawn towards steepest descent.
    """
    kept = (points.ended != 0) | (points.censored != 0)
    data = LengthPoints(
        logs=points.logs[kept], ended=points.ended[kept], censored=points.censored[kept]
    )
    num_ended = float(data.ended.sum())
    starts = _list_starts(data, num_ended, prior)
    at, _ = min(
        (_descend(_Place(mu, log(prior.sigma)), data, num_ended, prior) for mu in starts),
        key=lambda found: found[1].loss,
    )
    sigma = exp(at.log_sigma)
    return Posterior(
        mu=at.mu, sigma=sigma, mu_variance=1 / _find_certainty(sigma, num_ended, prior)
    )


class _Place(NamedTuple):
    mu: float
    log_sigma: float


class _View(NamedTuple):
    """The loss at one place, with its derivatives in (mu, ln sigma)."""

    loss: float
    by_mu: float
    by_sigma: float
    by_mu_mu: float
    by_mu_sigma: float
    by_sigma_sigma: float

    def find_step(self, damping: float) -> tuple[float, float]:
        """Solve the 2 x 2 system, with as much added to its diagonal as makes it positive."""
        most = max(abs(self.by_mu_mu), abs(self.by_sigma_sigma), 1e-12)
        lowest = (self.by_mu_mu + self.by_sigma_sigma) / 2 - hypot(
            (self.by_mu_mu - self.by_sigma_sigma) / 2, self.by_mu_sigma
        )
        added = damping * most + max(0.0, 1e-6 * most - lowest)
        a, b, d = self.by_mu_mu + added, self.by_mu_sigma, self.by_sigma_sigma + added
        determinant = a * d - b * b
        return (
            (b * self.by_sigma - d * self.by_mu) / determinant,
            (b * self.by_mu - a * self.by_sigma) / determinant,
        )


def _clip(log_sigma: float) -> float:
    return min(max(log_sigma, log(MIN_SIGMA)), log(MAX_SIGMA))


def _find_certainty(sigma: float, num_ended: float, prior: Prior) -> float:
    """One over the variance of mu."""
    return 1 / prior.mu_sd**2 + num_ended / (LOCATION_VARIANCE * sigma**2)


def _list_starts(data: LengthPoints, num_ended: float, prior: Prior) -> list[float]:
    """List locations to start from. Censored outputs far above the prior have two answers, a
    larger location or a larger spread."""
    starts = [prior.mu]
    if num_ended > 0:
        weight = num_ended / (num_ended + LOCATION_VARIANCE * prior.sigma**2 / prior.mu_sd**2)
        mean = float(data.logs @ data.ended) / num_ended
        starts = [weight * mean + (1 - weight) * prior.mu]
    counted = data.ended + np.maximum(data.censored, 0)
    if counted.sum() > num_ended:
        starts.append(float(data.logs @ counted / counted.sum()) + prior.sigma)
    return starts


def _descend(
    at: _Place, data: LengthPoints, num_ended: float, prior: Prior
) -> tuple[_Place, _View]:
    """Go down from a place until steps get tiny."""
    here, damping = _look(at, data, num_ended, prior), 1e-3
    for _ in range(MAX_STEPS):
        step = here.find_step(damping)
        there = _Place(at.mu + step[0], _clip(at.log_sigma + step[1]))
        found = _look(there, data, num_ended, prior)
        if found.loss <= here.loss:
            is_near = max(abs(there.mu - at.mu), abs(there.log_sigma - at.log_sigma)) < TOLERANCE
            at, here, damping = there, found, damping / 10
            if is_near:
                break
        elif damping > 1e9:
            break
        else:
            damping = 10 * damping
    return at, here


def _look(at: _Place, data: LengthPoints, num_ended: float, prior: Prior) -> _View:
    """Compute the negative log posterior at a place."""
    sigma = exp(at.log_sigma)
    z = (data.logs - at.mu) / sigma
    outside = NU + z * z
    pull = (NU + 1) * z / outside  # d/dz of -ln f, and of that:
    turn = (NU + 1) * (NU - z * z) / outside**2
    tail = -(NU + 1) / 2 * np.log(outside / NU)
    survival = special.stdtr(NU, -z)
    hazard = np.exp(_LOG_CONSTANT + tail) / survival  # d/dz of -ln P(T > z), and of that:
    bend = hazard * (hazard - pull)
    first = data.ended * pull + data.censored * hazard
    second = data.ended * turn + data.censored * bend
    crossed = second * z + first
    off_mu, off_sigma = at.mu - prior.mu, at.log_sigma - log(prior.sigma)
    spread = NU * prior.mu_sd**2 + off_mu**2
    known = num_ended / (LOCATION_VARIANCE * sigma**2)
    certainty = _find_certainty(sigma, num_ended, prior)
    share = known / certainty
    return _View(
        loss=-float(data.ended @ tail + data.censored @ np.log(survival))
        + num_ended * at.log_sigma
        + (NU + 1) / 2 * log(spread)
        + off_sigma**2 / (2 * prior.log_sigma_sd**2)
        + log(certainty) / 2,
        by_mu=-float(first.sum()) / sigma + (NU + 1) * off_mu / spread,
        by_sigma=num_ended - float(first @ z) + off_sigma / prior.log_sigma_sd**2 - share,
        by_mu_mu=float(second.sum()) / sigma**2 + (NU + 1) * (spread - 2 * off_mu**2) / spread**2,
        by_mu_sigma=float(crossed.sum()) / sigma,
        by_sigma_sigma=float(crossed @ z) + 1 / prior.log_sigma_sd**2 + 2 * share * (1 - share),
    )


_LOG_CONSTANT = float(special.gammaln((NU + 1) / 2) - special.gammaln(NU / 2) - log(NU * pi) / 2)
"""Logarithm of the factor of Student's density."""
