"""How wrong predictions of lengths are, on requests whose outputs are known."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import nan
from statistics import fmean, median

import numpy as np

from flashedge.runtime.lengths.base import LengthPredictor
from flashedge.scheduling.lengths.base import LengthDistribution
from flashedge.scheduling.lengths.observed import OutputLengths
from flashedge.scheduling.lengths.request import FinishedOutputs
from flashedge.statistics import interval, kendall

LEVELS = tuple(i / 20 for i in range(1, 20))
"""Shares whose quantiles the pinball loss compares: 5 % to 95 %."""
SPANS = (0.5, 0.8, 0.9)
"""Central shares of a distribution. A calibrated one has as many of the true lengths in each."""
BATCH = 32
MOST_RANKED = 1_000
"""Prompts for Kendall's tau, which takes a step for each pair of them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Accuracy:
    """Errors over prompts, each of which counts the same. NaN where nothing can be compared."""

    prompts: int
    predicted: int
    """Prompts with a prediction. The figures below are about these."""

    median_error: float
    """Mean of |predicted median - true median| / true median. Prompts most of whose outputs were
    cut are left out, since their true median is unknown."""

    median_error_95: tuple[float, float]
    """Its bootstrap interval."""

    log_score: float
    """Negative log-likelihood of one output, in nats; a cut output counts as longer. Lower is
    better. NaN for point estimates, which have none."""

    pinball: float
    """Mean pinball loss over LEVELS, as a share of the prompt's mean length. Lower is better."""

    tau: float
    """Kendall's tau between the predicted and the true median. 1: the same order."""

    coverage: tuple[float, ...]
    """Share of the outputs that ended within each of SPANS."""

    def to_json(self) -> dict[str, object]:
        """Convert to plain JSON values, with None for NaN."""
        return {
            "prompts": self.prompts,
            "predicted": self.predicted,
            "median_error": _round(self.median_error),
            "median_error_95": [_round(bound) for bound in self.median_error_95],
            "log_score": _round(self.log_score),
            "pinball": _round(self.pinball),
            "tau": _round(self.tau),
            "coverage": {
                f"{span:.0%}": _round(share)
                for span, share in zip(SPANS, self.coverage, strict=True)
            },
        }


def measure(predictor: LengthPredictor, finished: Sequence[FinishedOutputs]) -> Accuracy:
    """Compare predictions with what became of the requests. The predictor learns nothing."""
    found: list[LengthDistribution | None] = []
    for at in range(0, len(finished), BATCH):
        found += predictor.predict([one.request for one in finished[at : at + BATCH]])
    known = [
        (distribution, one.lengths)
        for distribution, one in zip(found, finished, strict=True)
        if distribution is not None
    ]
    return _summarize(known, len(finished))


def _summarize(known: Sequence[tuple[LengthDistribution, OutputLengths]], prompts: int) -> Accuracy:
    ranked = [
        (float(distribution.quantile(np.array(0.5))), true)
        for distribution, lengths in known
        if (true := find_median(lengths)) is not None
    ]
    errors = [abs(predicted - true) / true for predicted, true in ranked]
    first = ranked[:MOST_RANKED]
    ended = [(d, np.array(one.ended, dtype=np.float64)) for d, one in known if one.ended]
    scores = [-one.compute_log_likelihood(d) / one.num_outputs for d, one in known]
    log_score = _mean(scores)
    return Accuracy(
        prompts=prompts,
        predicted=len(known),
        median_error=_mean(errors),
        median_error_95=interval(errors),
        log_score=log_score if np.isfinite(log_score) else nan,
        pinball=_mean([_compute_pinball(d, tokens) for d, tokens in ended]),
        tau=kendall([p for p, _ in first], [t for _, t in first]),
        coverage=tuple(_mean([_cover(d, tokens, span) for d, tokens in ended]) for span in SPANS),
    )


def find_median(lengths: OutputLengths) -> float | None:
    """The median of the outputs. None where half of them or more were cut."""
    ended = lengths.ended
    return float(median(ended)) if 2 * len(ended) > lengths.num_outputs else None


def _compute_pinball(distribution: LengthDistribution, tokens: np.ndarray) -> float:
    """Mean pinball loss of a prompt's outputs, as a share of their mean."""
    levels = np.array(LEVELS)[:, None]
    over = tokens[None] - distribution.quantile(levels)
    return float(np.maximum(levels * over, (levels - 1) * over).mean() / tokens.mean())


def _cover(distribution: LengthDistribution, tokens: np.ndarray, span: float) -> float:
    """Share of the outputs within the central `span` of the distribution."""
    low, high = distribution.quantile(np.array([0.5 - span / 2, 0.5 + span / 2]))
    return float(((low <= tokens) & (tokens <= high)).mean())


def _mean(values: Sequence[float]) -> float:
    return fmean(values) if values else nan


def _round(value: float) -> float | None:
    return None if np.isnan(value) else round(float(value), 4)
