"""How outputs of one prompt differ, and how prompts of one group differ: two running averages.

A prompt that is known by few outputs is predicted from both: its location is drawn towards its
group by how much prompts differ, and its scale towards that of a usual prompt.
"""

from __future__ import annotations

from math import exp, log, sqrt

from flashedge.scheduling.lengths.posterior import LOCATION_VARIANCE, Posterior, Prior

ASSUMED_RUNS = 4.0
"""Runs that the assumptions count as, until runs show how it is."""
ASSUMED_SIGMA, ASSUMED_BETWEEN = 0.2, 0.35
"""Scale within a prompt, and standard deviation of mu between prompts of a group. About those of
100 problems of MATH (`scripts/lab/benchmark/step_lengths.jsonl`): 0.08 to 0.26, and 0.36."""
LOG_SIGMA_SD = 0.5
"""How much ln sigma differs between prompts."""
LEAST_BETWEEN = 0.05


class PromptSpread:
    """Of one group of prompts."""

    def __init__(self) -> None:
        self._weight = ASSUMED_RUNS
        self._log_sigma = ASSUMED_RUNS * log(ASSUMED_SIGMA)
        self._square = ASSUMED_RUNS * ASSUMED_BETWEEN**2

    @property
    def sigma(self) -> float:
        """The usual scale of one prompt."""
        return exp(self._log_sigma / self._weight)

    @property
    def between(self) -> float:
        """Standard deviation of mu between prompts."""
        return sqrt(max(self._square / self._weight, LEAST_BETWEEN**2))

    def build_prior(self, group_mu: float) -> Prior:
        """Build the prior of a prompt in a group with this location."""
        return Prior(mu=group_mu, mu_sd=self.between, sigma=self.sigma, log_sigma_sd=LOG_SIGMA_SD)

    def add(self, own: Posterior, group_mu: float, num_ended: float, keep: float) -> None:
        """Add a run. own: fitted to its outputs alone. group_mu: what the group predicted of it."""
        noise = LOCATION_VARIANCE * own.sigma**2 / num_ended
        square = max((own.mu - group_mu) ** 2 - noise, 0.0)
        self._weight = keep * self._weight + 1
        self._log_sigma = keep * self._log_sigma + log(own.sigma)
        self._square = keep * self._square + square
