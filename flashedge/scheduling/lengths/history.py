"""Predicts how long the outputs of one pair will be, from the runs that ended before.

The predictor keeps the tokens of a run's prompt and the mean logarithm of its outputs. A new prompt
gets the average over the last runs of its strategy, in which runs with prompts of similar length
count most (a kernel average). The difference of the latest runs from that average is added, so that
the prediction follows a change of the workload within a dozen runs. A prompt that ran before gets
the mean of its own outputs, shrunk towards the average.

Cut outputs are lower bounds. Each counts as the mean length of longer outputs (expectation
maximization).

This goes beyond the paper, which names online adaptation as future work. Ref: arXiv 2604.00499
App. E, G.
"""

from collections import OrderedDict
from dataclasses import dataclass
from math import log, pi, sqrt

import numpy as np
from scipy import special

from flashedge.scheduling.lengths.distribution import Floats, LogT
from flashedge.scheduling.lengths.outputs import FinishedOutputs, LengthRequest, OutputLengths

KEPT_RUNS, KEPT_PROMPTS = 512, 4_096
"""How many runs of each strategy, and how many prompts, are remembered."""
ALIKE = 0.15
"""Standard deviation of the kernel: prompts whose tokens differ by 15 % count 0.6."""
LATE_RUNS, LATE_PRIOR = 12.0, 8.0
"""The half-life of the latest runs' difference, in runs, and how many runs without a difference are
averaged with them."""
OWN_RUNS = 8.0
"""Half-life of the outputs of one prompt, in its own runs. Chosen by hand: with 0.8 the last run
would decide, and with 80 a prompt whose outputs change would keep its old length."""
BETWEEN, WITHIN = 0.35**2, 0.2**2
"""Assumed variances of the mean logarithm over prompts, and of the logarithm over outputs of one
prompt, before runs are known."""
PRIOR_OUTPUTS = 4
"""How many runs WITHIN counts as, before runs are known. The variance learned from all runs then
counts as this many outputs of a single prompt."""
LEAST_VARIANCE = 0.05**2
"""Lower bound of both variances, since a few equal outputs do not show that all are equal."""
STEPS = 4
"""Steps of expectation maximization for the cut outputs of a run. Chosen by hand: with one, cut
outputs would stay near the average of other prompts; with forty, each run would cost more time."""
SCALE = 0.7
"""Scale of a log-t over the standard deviation of ln X: between 0.65, which has its variance, and
0.9, which has its quartiles. This and the constants from KEPT_RUNS to LATE_PRIOR were chosen by the
errors on made-up prompts with real lengths (docs/results/scheduling.md)."""


@dataclass(frozen=True, slots=True)
class _Average:
    """What the runs say of a new prompt, in logarithms of tokens."""

    mu: float
    """The average, with the difference of the latest runs."""
    steady_mu: float
    """The average without that difference."""
    between: float
    """Variance over prompts of similar length."""
    doubt: float
    """Variance of mu."""


@dataclass(frozen=True, slots=True)
class _Outputs:
    """Outputs of one prompt, in logarithms of tokens."""

    number: float
    """How many there are. Those of earlier runs count in part."""
    mean: float
    squares: float
    """Sum of the squared distances from the mean."""

    @property
    def variance(self) -> float:
        return self.squares / max(1.0, self.number - 1)


NOTHING_KNOWN = _Average(log(512), log(512), between=1.0, doubt=1.0)
"""Assumed before the first run: 512 tokens, uncertain by a factor of e."""


class HistoryPredictor:
    """Remembers the runs of one pair. Predictions depend only on the runs and their order."""

    def __init__(self) -> None:
        self._runs: dict[str, Floats] = {}
        """By strategy (runs, 3): ln of the prompt's tokens, mean ln of the outputs' tokens, and how
        much that was above the average. Oldest first."""
        self._prompts: OrderedDict[bytes, _Outputs] = OrderedDict()
        self._within, self._num_within = WITHIN, PRIOR_OUTPUTS

    def predict(self, request: LengthRequest) -> LogT | None:
        """The length of one output. None before the first run has ended."""
        average, within = self._average(request), self._within
        if average is None:
            return None
        own = self._prompts.get(request.prompt_key)
        if own is None:
            return LogT(average.mu, SCALE * sqrt(within + average.between + average.doubt))
        trust = average.between / (average.between + within / own.number)
        mu = average.mu + trust * (own.mean - average.mu)
        within = (PRIOR_OUTPUTS * within + own.squares) / (PRIOR_OUTPUTS + own.number)
        return LogT(mu, SCALE * sqrt(within + (1 - trust) * average.between))

    def learn(self, finished: FinishedOutputs) -> None:
        """Remember the outputs of a run that has ended."""
        request = finished.request
        average = self._average(request)
        outputs = _summarize(finished.lengths, average or NOTHING_KNOWN, self._within)
        late = 0.0 if average is None else outputs.mean - average.steady_mu
        row = np.array([[_log_prompt(request), outputs.mean, late]])
        before = self._runs.get(request.kind, row[:0])
        self._runs[request.kind] = np.vstack([before, row])[-KEPT_RUNS:]
        if outputs.number > 1:
            self._num_within = min(self._num_within + 1, KEPT_RUNS)
            within = self._within + (outputs.variance - self._within) / self._num_within
            self._within = max(within, LEAST_VARIANCE)
        self._remember_prompt(request.prompt_key, outputs)

    def _average(self, request: LengthRequest) -> _Average | None:
        """Average the runs of the strategy, or all runs for one that is new."""
        if not self._runs:
            return None
        runs = self._runs.get(request.kind)
        prompts, means, late = np.vstack([*self._runs.values()]).T if runs is None else runs.T
        distance = (prompts - _log_prompt(request)) / ALIKE
        # The 0.1, shared by all runs, lets them decide where no prompt is of similar length.
        alike = np.exp(-(distance**2) / 2) + 0.1 / len(means)
        weight = float(alike.sum())
        steady = float(alike @ means) / weight
        # BETWEEN counts as three runs, and the mean uses up one degree of freedom.
        between = (float(alike @ (means - steady) ** 2) + 3 * BETWEEN) / (weight + 2)
        between = max(between, LEAST_VARIANCE)
        fading = 0.5 ** (np.arange(len(late))[::-1] / LATE_RUNS)
        added = float(fading @ late) / (float(fading.sum()) + LATE_PRIOR)
        return _Average(steady + added, steady, between, between / weight)

    def _remember_prompt(self, key: bytes, outputs: _Outputs) -> None:
        before = self._prompts.pop(key, _Outputs(0.0, 0.0, 0.0))
        kept = 0.5 ** (1 / OWN_RUNS)
        number = kept * before.number + outputs.number
        self._prompts[key] = _Outputs(
            number,
            (kept * before.number * before.mean + outputs.number * outputs.mean) / number,
            kept * before.squares + outputs.squares,
        )
        if len(self._prompts) > KEPT_PROMPTS:
            self._prompts.popitem(last=False)


def _log_prompt(request: LengthRequest) -> float:
    """ln of the prompt's tokens. It is 0 for an unknown length, which is far from known ones."""
    return log(max(1, request.num_prompt_tokens))


def _summarize(lengths: OutputLengths, average: _Average, within: float) -> _Outputs:
    """Summarize the outputs of one run by a few steps of expectation maximization. A cut output
    counts as E[ln X | ln X > ln tokens], where ln X is normal around the run's mean, shrunk towards
    the average of other prompts."""
    logs, weights = np.log(np.array(lengths.tokens)), np.array(lengths.weights)
    cut, number = np.array(lengths.is_censored), lengths.num_outputs
    bounds, spread = logs[cut], np.zeros_like(logs)
    trust = average.between / (average.between + within / number)
    expected = average.mu
    for _ in range(STEPS):
        z = (bounds - expected) / sqrt(within)
        hazard = np.exp(-(z**2) / 2 - special.log_ndtr(-z)) / sqrt(2 * pi)
        logs[cut] = expected + sqrt(within) * hazard
        spread[cut] = within * (1 + z * hazard - hazard**2)
        mean = float(logs @ weights) / number
        expected = average.mu + trust * (mean - average.mu)
    squares = max(0.0, float(((logs - mean) ** 2 + spread) @ weights))
    return _Outputs(number, mean, squares)
