"""How wrong predictions of lengths are, on requests whose outputs are known."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import nan
from statistics import fmean, median

import numpy as np
from scipy import stats

from flashedge.scheduling.lengths.distribution import LogT
from flashedge.scheduling.lengths.outputs import FinishedOutputs, LengthRequest, OutputLengths
from scripts.bench.pearson import pearson
from scripts.lab.distributions import fit_log_t
from scripts.lab.statistics import interval, kendall

Predict = Callable[[LengthRequest], LogT | None]
LEVELS = np.arange(1, 20)[:, None] / 20
"""Shares whose quantiles the pinball loss compares: 5 % to 95 %."""
SPANS = (0.5, 0.8, 0.9)
"""Central shares of a distribution. A calibrated one has as many of the true lengths in each."""
MOST_RANKED = 1_000
"""Prompts for Kendall's tau, which takes a step for each pair of them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Accuracy:
    """Errors over the predicted prompts, each of which counts the same. NaN without any."""

    predicted: int
    median_error: float
    """Mean of |predicted median - true median| / true median. Prompts most of whose outputs were
    cut are left out, since their true median is unknown."""

    median_error_95: tuple[float, float]
    """Its bootstrap interval."""

    log_score: float
    """Negative log-likelihood of one output, in nats; a cut output counts as longer. Lower is
    better."""

    pinball: float
    """Mean pinball loss over LEVELS, as a share of the prompt's mean length. Lower is better."""

    tau: float
    """Kendall's tau between the predicted and the true median. 1: the same order."""

    coverage: tuple[float, ...]
    """Share of the outputs that ended within each of SPANS."""


def measure(predict: Predict, finished: Sequence[FinishedOutputs]) -> Accuracy:
    """Compare predictions with what became of the requests."""
    known = [(said, o.lengths) for o in finished if (said := predict(o.request)) is not None]
    medians = [
        (float(np.exp(said.mu)), true)
        for said, lengths in known
        if (true := find_median(lengths)) is not None
    ]
    errors = [abs(predicted - true) / true for predicted, true in medians]
    ended = [(said, np.array(own)) for said, lengths in known if (own := list_ended(lengths))]
    return Accuracy(
        predicted=len(known),
        median_error=_mean(errors),
        median_error_95=interval(errors),
        log_score=_mean([_score(said, lengths) for said, lengths in known]),
        pinball=_mean([_compute_pinball(said, tokens) for said, tokens in ended]),
        tau=kendall(
            [predicted for predicted, _ in medians[:MOST_RANKED]],
            [true for _, true in medians[:MOST_RANKED]],
        ),
        coverage=tuple(
            _mean([_cover(said, tokens, span) for said, tokens in ended]) for span in SPANS
        ),
    )


def list_ended(lengths: OutputLengths) -> tuple[int, ...]:
    """Tokens of the outputs that the model ended, each as often as it counts."""
    pairs = zip(lengths.tokens, lengths.is_censored, lengths.weights, strict=True)
    return tuple(tokens for tokens, cut, w in pairs if not cut for _ in range(round(w)))


def find_median(lengths: OutputLengths) -> float | None:
    """The median of the outputs. None where half of them or more were cut."""
    ended = list_ended(lengths)
    return float(median(ended)) if 2 * len(ended) > lengths.num_outputs else None


def measure_explained(predict: Predict, finished: Sequence[FinishedOutputs]) -> tuple[float, float]:
    """The shares of the variance of mu and of ln sigma over prompts that predictions explain.

    Each is the squared correlation with what fits the prompt's own outputs, which should be many:
    the errors of the fit count as the predictor's. A wrong scale does not count, since it changes
    no order. Ref: arXiv 2604.00499 §3.2.
    """
    said, true = [], []
    for one in finished:
        found = predict(one.request)
        assert found is not None, "every prompt is predicted"
        said.append(found)
        true.append(fit_log_t(np.array(one.lengths.tokens), np.array(one.lengths.is_censored)))
    mu = pearson([one.mu for one in said], [one.mu for one in true])
    spreads = ([float(np.log(one.sigma)) for one in both] for both in (said, true))
    return mu**2, pearson(*spreads) ** 2


def _score(said: LogT, lengths: OutputLengths) -> float:
    tokens, weights = np.array(lengths.tokens, dtype=np.float64), np.array(lengths.weights)
    cut = np.array(lengths.is_censored)
    logs = np.log(tokens[~cut])
    density = stats.t.logpdf((logs - said.mu) / said.sigma, said.nu) - np.log(said.sigma) - logs
    found = density @ weights[~cut] + said.log_survival(tokens[cut]) @ weights[cut]
    return -float(found) / lengths.num_outputs


def _compute_pinball(said: LogT, tokens: np.ndarray) -> float:
    """Mean pinball loss of a prompt's outputs, as a share of their mean."""
    over = tokens[None] - said.inverse_survival(1 - LEVELS)
    return float(np.maximum(LEVELS * over, (LEVELS - 1) * over).mean() / tokens.mean())


def _cover(said: LogT, tokens: np.ndarray, span: float) -> float:
    """Share of the outputs within the central `span` of the distribution."""
    low, high = said.inverse_survival(np.array([0.5 + span / 2, 0.5 - span / 2]))
    return float(((low <= tokens) & (tokens <= high)).mean())


def _mean(values: Sequence[float]) -> float:
    return fmean(values) if values else nan
