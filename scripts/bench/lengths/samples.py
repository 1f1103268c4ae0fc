"""Prompts with the lengths of several real answers each, and how these vary.

A file has a line of JSON for each prompt: `problem`, its text or number, and either `lens`, the
tokens of each answer, or `step_tokens`, those of each step of each answer. The longest answer of a
file is taken for its limit of tokens, so answers as long as it count as cut.
"""

import gzip
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from flashedge.scheduling.lengths.distribution import Floats, LogT
from flashedge.scheduling.lengths.outputs import FinishedOutputs, LengthRequest, OutputLengths
from flashedge.types import TokenIds
from scripts.bench.pearson import pearson
from scripts.lab.distributions import fit_log_t

Encode = Callable[[str], TokenIds]


@dataclass(frozen=True)
class Samples:
    """Real answers to one prompt."""

    text: str
    prompt_ids: TokenIds
    tokens: tuple[int, ...]
    """Of each answer."""
    limit: int
    """Tokens at which an answer was cut."""

    @property
    def lengths(self) -> NDArray[np.int64]:
        return np.array(self.tokens)

    @property
    def is_cut(self) -> NDArray[np.bool_]:
        return self.lengths >= self.limit

    @cached_property
    def fitted(self) -> LogT:
        """The log-t distribution that fits all answers."""
        return fit_log_t(self.lengths, self.is_cut)

    def remember(self, fit: LogT) -> None:
        """Take a fit that was made before."""
        vars(self)["fitted"] = fit

    def take(self, start: int) -> "Samples":
        """Every second answer."""
        return Samples(self.text, self.prompt_ids, self.tokens[start::2], self.limit)

    @property
    def request(self) -> LengthRequest:
        """What the product's predictor is asked."""
        return LengthRequest(
            pair="sampled",
            prompt_ids=self.prompt_ids,
            text=f"user: {self.text}",
            outputs=len(self.tokens),
            max_tokens=self.limit,
        )

    @property
    def finished(self) -> FinishedOutputs:
        """What it learns from."""
        lengths = OutputLengths.from_outputs(self.tokens, self.is_cut.tolist())
        return FinishedOutputs(request=self.request, lengths=lengths)


def read_samples(path: Path, encode: Encode) -> list[Samples]:
    """Read a file of JSON lines, or .gz of one. Prompts without a text get tokens of no meaning, as
    many as the file says."""
    with gzip.open(path, "rt") if path.suffix == ".gz" else path.open() as file:
        rows = list(map(json.loads, file))
    lens = [row["lens"] if "lens" in row else list(map(sum, row["step_tokens"])) for row in rows]
    limit = max(map(max, lens))
    return [
        Samples(
            text=str(row["problem"]),
            prompt_ids=(0,) * row["prompt_tokens"]
            if "prompt_tokens" in row
            else tuple(encode(row["problem"])),
            tokens=tuple(tokens),
            limit=limit,
        )
        for row, tokens in zip(rows, lens, strict=True)
    ]


def describe_spread(samples: Sequence[Samples]) -> dict[str, float]:
    """How lengths vary within prompts and over them, and how mu and sigma go together.

    sigma_reliability: the share of the variance of ln sigma over prompts that is not the noise of a
    fit to so few answers, by the correlation r of fits to both halves of each prompt's answers:
    2r / (1 + r). No predictor can explain more.
    """
    groups = [one.lengths.astype(np.float64) for one in samples]
    mu = np.array([one.fitted.mu for one in samples])
    log_sigma = np.log([one.fitted.sigma for one in samples])
    halves = [np.log([one.take(at).fitted.sigma for one in samples]).tolist() for at in (0, 1)]
    r = pearson(*halves)
    cv = np.array([group.std(ddof=1) / group.mean() for group in groups])
    quantiles = np.array([np.quantile(group, (0.5, 0.9, 0.99)) for group in groups])
    means, together = np.array([group.mean() for group in groups]), np.concatenate(groups)
    found = {
        "prompts": len(groups),
        "answers": min(map(len, groups)),
        "mean_tokens": together.mean(),
        "cut_share": np.concatenate([one.is_cut for one in samples]).mean(),
        "within_cv": cv.mean(),
        "share_cv_above_1": (cv > 1).mean(),
        "between_cv": means.std(ddof=1) / means.mean(),
        "p90_over_p50": (quantiles[:, 1] / quantiles[:, 0]).mean(),
        "p99_over_p50": (quantiles[:, 2] / quantiles[:, 0]).mean(),
        "mu": mu.mean(),
        "mu_spread": mu.std(),
        "sigma": np.exp(log_sigma.mean()),
        "sigma_spread": log_sigma.std(),
        "correlation": pearson(mu.tolist(), log_sigma.tolist()),
        "sigma_reliability": 2 * r / (1 + r),
    }
    return {name: float(f"{value:.4g}") for name, value in found.items()}


def measure_repeats(samples: Sequence[Samples], counts: Sequence[int]) -> dict[int, list[float]]:
    """By how much a fit to the first few answers differs from that to all: the mean relative errors
    of mu and sigma. Ref: arXiv 2604.00499 App. D.2."""
    found = {}
    for count in counts:
        few = [Samples(s.text, s.prompt_ids, s.tokens[:count], s.limit).fitted for s in samples]
        pairs = list(zip(few, [one.fitted for one in samples], strict=True))
        mu = np.mean([abs(one.mu / whole.mu - 1) for one, whole in pairs])
        sigma = np.mean([abs(one.sigma / whole.sigma - 1) for one, whole in pairs])
        found[count] = [round(float(mu), 4), round(float(sigma), 4)]
    return found


def list_parameters(fits: Sequence[LogT]) -> tuple[Floats, Floats]:
    """mu and ln sigma of each: (prompts,)."""
    return np.array([one.mu for one in fits]), np.log([one.sigma for one in fits])
