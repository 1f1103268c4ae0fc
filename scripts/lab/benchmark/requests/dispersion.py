"""How much output lengths vary, within prompts and between them.

Ref: arXiv 2604.00499 §3.1: coefficient of variation 1.09 within a prompt, P90 / P50 4.62.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass

import numpy as np
from numpy.typing import NDArray


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

    def to_json(self, digits: int = 4) -> dict[str, float]:
        return {
            name: float(f"{value:.{digits}g}") if isinstance(value, float) else value
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
