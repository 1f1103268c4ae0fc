"""Which distributions of output lengths prompts have: log-t, whose parameters vary by prompt.

A prompt's lengths are X = min(ceil(exp(mu + sigma T)), L), where T is Student's t with nu degrees
of freedom. Over prompts mu is normal, and so is the logarithm of sigma. They may be correlated.

The default prior was fitted by a coarse grid to what arXiv 2604.00499 tells of 1,000 prompts of
LMSYS-Chat-1M with 100 answers each (§3.1, App. C.2). With samples of the same size:

|                                     | paper  | this prior |
|-------------------------------------|--------|------------|
| mean length                         | 177    | 207        |
| coefficient of variation per prompt | 1.09   | 1.18       |
| skewness                            | 3.10   | 3.40       |
| P90 / P50, P99 / P50                | 4.62, 10.77 | 3.90, 10.60 |
| share of the longest tenth          | 35.7 % | 35.1 %     |

Spread and correlation over prompts are our choice where these figures leave it open.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import exp, log

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
NU = 3.5
MAX_PROMPT = 2048
SCALE_PROMPTS, SCALE_SAMPLES, SCALE_SEED = 400, 200, 20261124


@dataclass(frozen=True, slots=True, kw_only=True)
class LengthPrior:
    """The parameters of prompts' length distributions."""

    mu: float = 4.3
    """Mean over prompts of mu, the logarithm of a prompt's median length."""

    mu_spread: float = 0.9
    """Standard deviation over prompts of mu."""

    sigma: float = 0.6
    """Median over prompts of sigma."""

    sigma_spread: float = 0.7
    """Standard deviation over prompts of the logarithm of sigma."""

    correlation: float = 0.5
    """Of mu and log sigma. Positive: longer answers are also the less certain ones (§6.3)."""

    nu: float = NU
    """Degrees of freedom. The smaller, the heavier the tail."""

    max_tokens: int = 2048

    prompt_mu: float = 3.2
    """Mean of the logarithm of a prompt's own tokens. With the spread they have a median of 25 and
    a mean of 66, as in LMSYS-Chat-1M (23 and 65)."""

    prompt_spread: float = 1.4

    def draw_parameters(self, count: int, draw: np.random.Generator) -> tuple[Floats, Floats]:
        """(count,) values each of mu and sigma."""
        one, other = draw.standard_normal((2, count))
        both = self.correlation * one + (1 - self.correlation**2) ** 0.5 * other
        mu = self.mu + self.mu_spread * one
        return mu, self.sigma * np.exp(self.sigma_spread * both)

    def draw_prompt_tokens(self, count: int, draw: np.random.Generator) -> NDArray[np.int64]:
        """(count,) tokens of the prompts, at most `MAX_PROMPT`."""
        logs = self.prompt_mu + self.prompt_spread * draw.standard_normal(count)
        return _round_up(np.exp(logs), MAX_PROMPT)

    def draw_lengths(
        self, mu: Floats, sigma: Floats, draw: np.random.Generator, samples: int = 1
    ) -> NDArray[np.int64]:
        """(prompts, samples) output lengths in [1, max_tokens]."""
        noise = draw.standard_t(self.nu, (len(mu), samples))
        longest = log(self.max_tokens)
        logs = np.minimum(mu[:, None] + sigma[:, None] * noise, longest)
        return _round_up(np.exp(logs), self.max_tokens)


DEFAULT = LengthPrior()
SHIFTED = LengthPrior(mu=5.2, mu_spread=0.7, sigma=0.9, sigma_spread=0.5, correlation=-0.3)
"""A workload that no predictor was trained on: longer answers, less certain ones, and of these the
shorter ones the less certain."""


def scale_to_dispersion(prior: LengthPrior, within_cv: float) -> LengthPrior:
    """Multiply all sigmas of the prior so that the mean coefficient of variation within a prompt
    is `within_cv`.

    Found by bisection on a fixed sample, so equal arguments give equal priors. Raises ValueError
    for a dispersion that no factor gives.
    """
    low, high = log(1e-3), log(10.0)
    if not _measure_within(prior, exp(low)) < within_cv < _measure_within(prior, exp(high)):
        raise ValueError(f"no scale of sigma gives a coefficient of variation of {within_cv:g}")
    for _ in range(30):
        middle = (low + high) / 2
        if _measure_within(prior, exp(middle)) < within_cv:
            low = middle
        else:
            high = middle
    return replace(prior, sigma=prior.sigma * exp((low + high) / 2))


def _measure_within(prior: LengthPrior, factor: float) -> float:
    draw = np.random.default_rng(SCALE_SEED)
    mu, sigma = prior.draw_parameters(SCALE_PROMPTS, draw)
    lengths = prior.draw_lengths(mu, sigma * factor, draw, SCALE_SAMPLES)
    return float((lengths.std(axis=1, ddof=1) / lengths.mean(axis=1)).mean())


def _round_up(tokens: Floats, most: int) -> NDArray[np.int64]:
    """Whole tokens in [1, most]."""
    whole: NDArray[np.int64] = np.clip(np.ceil(tokens), 1, most).astype(np.int64)
    return whole
