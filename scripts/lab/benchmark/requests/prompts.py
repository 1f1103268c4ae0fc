"""Prompts with known distributions of lengths: drawn from a prior, or of the real step trace.

The step trace (`benchmark.lengths`) holds problems of 1 to more than 20 steps. Here the answer to a
problem has as many steps as one of its samples, and each step's length is drawn by itself from the
smooth distribution of that problem and step. Every problem is asked many times.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from flashedge.scheduling.lengths.distribution import NU
from scripts.lab.benchmark.lengths import group_lengths, load_trace
from scripts.lab.benchmark.requests.dispersion import Dispersion, measure_dispersion
from scripts.lab.benchmark.requests.prior import Floats, LengthPrior
from scripts.lab.distributions import fit_log_t
from scripts.lab.sim.trace import TraceRow

MEASURED_SAMPLES = 200
"""Samples of each prompt by which its dispersion is measured."""

MEASURED_PROMPTS = 500
MOST_STEPS = 10
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
    """The length that each request takes, whatever the order."""

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


def draw_trace_prompts(
    count: int,
    seed: int,
    *,
    workload: str = "math",
    most_steps: int = MOST_STEPS,
    max_tokens: int = MAX_TOKENS,
    chats: LengthPrior | None = None,
    chat_share: float = 0.5,
) -> Prompts:
    """Draw problems of the step trace, and a length of each.

    most_steps: problems with a longer sample are left out; max_tokens: cuts an answer; chats: mixed
    in, with this share.
    """
    draw = np.random.default_rng(seed)
    all_rows = load_trace(workload, "smooth").rows
    rows = [row for row in all_rows if max(map(len, row.step_tokens)) <= most_steps]
    known = [draw_answer_lengths(row, MEASURED_SAMPLES, draw, max_tokens) for row in rows]
    fitted = [fit_log_t(samples, samples >= max_tokens) for samples in known]
    asked = draw.integers(len(rows), size=count)
    mu = np.array([fitted[i].mu for i in asked])
    sigma = np.array([fitted[i].sigma for i in asked])
    prompt_tokens = np.array([rows[i].prompt_tokens for i in asked], dtype=np.int64)
    lengths = np.concatenate([draw_answer_lengths(rows[i], 1, draw, max_tokens) for i in asked])
    samples = [known[i] for i in asked[:MEASURED_PROMPTS]]
    about = f"{len(rows)} problems of {workload} with up to {most_steps} real steps, smooth tails"
    if chats is not None:
        is_chat = draw.random(count) < chat_share
        others = draw_prompts(chats, count, seed)
        mu, sigma = np.where(is_chat, (others.mu, others.sigma), (mu, sigma))
        prompt_tokens = np.where(is_chat, others.prompt_tokens, prompt_tokens)
        lengths = np.where(is_chat, others.output_tokens, lengths)
        max_tokens = max(max_tokens, chats.max_tokens)
        further = chats.draw_lengths(mu, sigma, draw, MEASURED_SAMPLES)
        samples = [further[i] if is_chat[i] else one for i, one in enumerate(samples)]
        about += f", and a share of {chat_share:g} long chats"
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


def draw_answer_lengths(
    row: TraceRow, count: int, draw: np.random.Generator, max_tokens: int = MAX_TOKENS
) -> NDArray[np.int64]:
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
    return np.minimum(found, max_tokens)
