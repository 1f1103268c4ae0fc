"""Prompts with known distributions of output lengths: drawn from a prior, or of the step trace."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from math import exp, log

import numpy as np
from numpy.typing import NDArray

from flashedge.scheduling.lengths.distribution import NU
from scripts.lab.benchmark.lengths import group_lengths, load_trace
from scripts.lab.distributions import fit_log_t
from scripts.lab.sim.model import TraceRow


@dataclass(frozen=True, slots=True, kw_only=True)
class Dispersion:
    """Figures of several samples of each of several prompts."""

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


def measure_dispersion(
    lengths: Sequence[NDArray[np.int64]] | NDArray[np.int64], max_tokens: int
) -> Dispersion:
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


Floats = NDArray[np.float64]
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


MEASURED_SAMPLES = 200
"""Samples of each prompt by which its dispersion is measured."""

MEASURED_PROMPTS = 500
MOST_STEPS = 10
CHAT_SHARE = 0.5
MAX_TOKENS = 2048


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Prompts:
    """Requests without their arrivals. All arrays are (requests,)."""

    about: str

    mu: Floats
    sigma: Floats
    """The distribution of each request's length is log-t of these, or is fitted by it."""

    nu: float
    max_tokens: int
    prompt_tokens: NDArray[np.int64]

    output_tokens: NDArray[np.int64]
    """The length that each request takes in any order."""

    dispersion: Dispersion
    """Of further samples of the same prompts."""

    def __len__(self) -> int:
        return len(self.mu)


def draw_prompts(prior: LengthPrior, count: int, seed: int, about: str = "") -> Prompts:
    """Draw prompts, and a length of each."""
    draw = np.random.default_rng(seed)
    mu, sigma = prior.draw_parameters(count, draw)
    lengths = prior.draw_lengths(mu, sigma, draw)[:, 0]
    prompt_tokens = prior.draw_prompt_tokens(count, draw)
    few = slice(0, MEASURED_PROMPTS)
    samples = prior.draw_lengths(mu[few], sigma[few], draw, MEASURED_SAMPLES)
    return Prompts(
        about=about or f"log-t lengths, mu {prior.mu:g}, sigma {prior.sigma:.3g}",
        mu=mu,
        sigma=sigma,
        nu=prior.nu,
        max_tokens=prior.max_tokens,
        prompt_tokens=prompt_tokens,
        output_tokens=lengths,
        dispersion=measure_dispersion(samples, prior.max_tokens),
    )


def draw_trace_prompts(count: int, seed: int, *, chats: LengthPrior | None = None) -> Prompts:
    """Draw problems of the step trace, and a length of each. chats: half of the prompts are these.

    Problems with a sample of more than `MOST_STEPS` are left out.
    """
    draw = np.random.default_rng(seed)
    all_rows = load_trace("math", "smooth").rows
    rows = [row for row in all_rows if max(map(len, row.step_tokens)) <= MOST_STEPS]
    known = [draw_answer_lengths(row, MEASURED_SAMPLES, draw) for row in rows]
    fitted = [fit_log_t(samples, samples >= MAX_TOKENS) for samples in known]
    asked = draw.integers(len(rows), size=count)
    mu = np.array([fitted[i].mu for i in asked])
    sigma = np.array([fitted[i].sigma for i in asked])
    prompt_tokens = np.array([rows[i].prompt_tokens for i in asked], dtype=np.int64)
    lengths = np.concatenate([draw_answer_lengths(rows[i], 1, draw) for i in asked])
    samples = [known[i] for i in asked[:MEASURED_PROMPTS]]
    max_tokens = MAX_TOKENS
    about = f"{len(rows)} problems of math with up to {MOST_STEPS} real steps, smooth tails"
    if chats is not None:
        is_chat = draw.random(count) < CHAT_SHARE
        others = draw_prompts(chats, count, seed)
        mu, sigma = np.where(is_chat, (others.mu, others.sigma), (mu, sigma))
        prompt_tokens = np.where(is_chat, others.prompt_tokens, prompt_tokens)
        lengths = np.where(is_chat, others.output_tokens, lengths)
        max_tokens = max(MAX_TOKENS, chats.max_tokens)
        further = chats.draw_lengths(mu, sigma, draw, MEASURED_SAMPLES)
        samples = [further[i] if is_chat[i] else one for i, one in enumerate(samples)]
        about += f", and a share of {CHAT_SHARE:g} long chats"
    return Prompts(
        about=about,
        mu=mu,
        sigma=sigma,
        nu=NU,
        max_tokens=max_tokens,
        prompt_tokens=prompt_tokens,
        output_tokens=lengths,
        dispersion=measure_dispersion(samples, max_tokens),
    )


def draw_answer_lengths(row: TraceRow, count: int, draw: np.random.Generator) -> NDArray[np.int64]:
    """(count,) tokens of whole answers to the row's problem, each step drawn by itself."""
    groups = {key: np.array(group) for key, group in group_lengths(row).items()}
    patterns = [len(sample) for sample in row.step_tokens]
    chosen = draw.integers(len(patterns), size=count)
    found = np.zeros(count, dtype=np.int64)
    for at, pattern in enumerate(chosen):
        steps = patterns[pattern]
        for step in range(steps):
            group = groups[step, step == steps - 1]
            found[at] += group[draw.integers(len(group))]
    return np.minimum(found, MAX_TOKENS)
