"""Lengths of outputs: their fit, priors over prompts, predictions that err, dispersion."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from flashedge.scheduling.lengths.distribution import NU, Floats, LogT

Integers = NDArray[np.int64]
LEAST_SPREAD = 0.01
"""Scale of ln X where all lengths are equal, which no likelihood bounds."""
MAX_PROMPT = 2048


def fit_log_t(lengths: Integers, is_cut: NDArray[np.bool_]) -> LogT:
    """Fit a log-t distribution by maximum likelihood, where a cut length is a lower bound.

    Ref: arXiv 2604.00499 §3.1, eq. (5) and (6), which leaves cut lengths out.
    """
    logs = np.log(lengths)
    sample = stats.CensoredData.right_censored(logs, is_cut)
    spread = max(LEAST_SPREAD, float(logs.std()))
    _, mu, sigma = stats.t.fit(sample, f0=NU, loc=float(np.median(logs)), scale=spread)
    return LogT(float(mu), max(LEAST_SPREAD, float(sigma)))


@dataclass(frozen=True, slots=True, kw_only=True)
class LengthPrior:
    """How the log-t parameters of length distributions vary over prompts.

    The spreads and the correlation are those of 164 prompts of HumanEval with 100 real answers each
    (docs/results/scheduling.md).
    """

    mu: float = 5.5
    """Mean over prompts of mu, the logarithm of a prompt's median length: 245 tokens."""
    mu_spread: float = 0.6
    sigma: float = 0.61
    """Median over prompts."""
    sigma_spread: float = 0.66
    """Standard deviation over prompts of the logarithm of sigma."""
    correlation: float = 0.26
    """Correlation of mu and log sigma. Positive: longer answers are less certain (§6.3)."""
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

    def draw_prompt_tokens(self, count: int, draw: np.random.Generator) -> Integers:
        """(count,) tokens of the prompts, at most `MAX_PROMPT`."""
        logs = self.prompt_mu + self.prompt_spread * draw.standard_normal(count)
        return round_up(np.exp(logs), MAX_PROMPT)


def round_up(tokens: Floats, most: int) -> Integers:
    whole: Integers = np.clip(np.ceil(tokens), 1, most).astype(np.int64)
    return whole


def regress(
    values: Floats, mean: float, spread: float, share: float, draw: np.random.Generator
) -> Floats:
    """What the best predictor with this coefficient of determination says of normal values.

    It is the truth drawn towards the mean of the values that the predictor was trained on, with
    noise. The paper's text predictor explains 0.82 of mu and 0.76 of log sigma (arXiv 2604.00499
    §3.2), which simulated loads assume. A text model that was trained here explains 0.33 of mu and
    nothing of log sigma (docs/results/scheduling.md).
    """
    noise = draw.standard_normal(len(values))
    error = spread * (share * (1 - share)) ** 0.5 * noise
    predicted: Floats = mean + share * (values - mean) + error
    return predicted


EXPLAINED_MU, EXPLAINED_SIGMA = 0.82, 0.76


@dataclass(frozen=True, slots=True, kw_only=True)
class Dispersion:
    """How much lengths vary, by several samples of each of several prompts."""

    prompts: int
    samples: int
    """Smallest number of samples of a prompt."""
    mean_tokens: float
    within_cv: float
    """Mean over prompts of the coefficient of variation of a prompt's lengths."""
    between_cv: float
    """Coefficient of variation of the prompts' mean lengths."""
    p90_over_p50: float
    """Mean over prompts, like the next."""
    p99_over_p50: float
    cut_share: float
    """Share of the samples that the limit cut."""

    def to_json(self) -> dict[str, float]:
        return {
            name: float(f"{value:.4g}") if isinstance(value, float) else value
            for name, value in asdict(self).items()
        }


def measure_dispersion(lengths: Sequence[Integers] | Integers, max_tokens: int) -> Dispersion:
    """Measure samples by prompt, at least two of each."""
    groups = [np.asarray(group, dtype=np.float64) for group in lengths]
    means = np.array([group.mean() for group in groups])
    quantiles = np.array([np.quantile(group, (0.5, 0.9, 0.99)) for group in groups])
    together = np.concatenate(groups)
    return Dispersion(
        prompts=len(groups),
        samples=min(map(len, groups)),
        mean_tokens=float(together.mean()),
        within_cv=float(np.mean([g.std(ddof=1) / g.mean() for g in groups])),
        between_cv=float(means.std(ddof=1) / means.mean()) if len(groups) > 1 else 0.0,
        p90_over_p50=float((quantiles[:, 1] / quantiles[:, 0]).mean()),
        p99_over_p50=float((quantiles[:, 2] / quantiles[:, 0]).mean()),
        cut_share=float((together >= max_tokens).mean()),
    )
