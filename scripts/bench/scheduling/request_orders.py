"""Requests of known lengths, what is predicted of them, and the orders that are compared.

| name | the order |
|---|---|
| fcfs | by arrival: the naive twin |
| ssjf | a predicted length, the shortest first |
| ltr | a predicted rank, the least first |
| sept | the predicted expectation |
| tie | the predicted expectation and tail, by an adaptive weight |
| per_token | predicted E[X] / E[1 / X]; ours: Smith's rule, since a request's weight in the mean latency per token is 1 / X |
| oracle_distribution | tie, which knows each prompt's distribution |
| oracle_length | the true lengths |

All predicted ones read the same two predictions, mu and sigma, with the errors of the paper's text
predictor (`regress`), so none has a better encoder or more training data.

Ref: arXiv 2604.00499 §6.1.
"""  # noqa: E501

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cache
from math import exp, log
from types import MappingProxyType
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from flashedge.scheduling.lengths.distribution import (
    NU,
    Floats,
    LengthDistribution,
    LogT,
    compute_figures,
)
from flashedge.scheduling.programs.policies import FirstCome, LeastWork, Policy, Queued
from scripts.lab.benchmark.lengths import MAX_TOKENS, draw_answer_lengths, load_trace
from scripts.lab.distributions import (
    EXPLAINED_MU,
    EXPLAINED_SIGMA,
    Dispersion,
    Integers,
    LengthPrior,
    fit_log_t,
    measure_dispersion,
    regress,
    round_up,
)

WORKLOADS: Mapping[str, str] = MappingProxyType(
    {
        "cv 1.09": "log-t lengths, dispersed as in the paper",
        "trace and chats": "problems of 1 to 10 real steps, and as many long chats",
    }
)
PAPER_CV = 1.09
LONG_CHATS = LengthPrior(mu=5.5, mu_spread=0.6)
"""Median 245 tokens."""
SCALE_PROMPTS, SCALE_SAMPLES, SCALE_SEED = 400, 200, 20261124
MEASURED_PROMPTS, MEASURED_SAMPLES = 500, 200
"""By which the dispersion is measured."""
MOST_STEPS = 10
CHAT_SHARE = 0.5
_RANK_NODES, _RANK_SAMPLES = 64, 20_000


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class RequestLoad:
    """The requests of one workload and seed. All arrays are (requests,)."""

    seed: int
    max_tokens: int
    prompt_tokens: Integers

    output_tokens: Integers
    """The length that each request takes in any order."""

    mu: Floats
    sigma: Floats
    """The log-t distribution of each request's length, drawn or fitted."""

    trained_on: LengthPrior
    dispersion: Dispersion
    """Of further samples of the same prompts."""

    predicted: tuple[Floats, Floats] | None = None
    """What a predictor says of mu and sigma. None: the truth with the paper's errors."""

    def __len__(self) -> int:
        return len(self.mu)

    def draw_arrivals(self, per_s: float) -> Floats:
        """When they arrive at so many a second; all at once for infinity.

        Other rates have the same arrivals, closer together.
        """
        if not np.isfinite(per_s):
            return np.zeros(len(self))
        gaps = np.random.default_rng([self.seed, 5]).exponential(1.0, len(self))
        times: Floats = np.cumsum(gaps) / per_s
        return times


def draw_lengths(
    prior: LengthPrior, mu: Floats, sigma: Floats, draw: np.random.Generator, samples: int = 1
) -> Integers:
    """(prompts, samples) output lengths in [1, max_tokens]."""
    noise = draw.standard_t(NU, (len(mu), samples))
    logs = np.minimum(mu[:, None] + sigma[:, None] * noise, log(prior.max_tokens))
    return round_up(np.exp(logs), prior.max_tokens)


def draw_load(name: str, count: int, seed: int, *, shrink: int = 1) -> RequestLoad:
    """Draw a workload's requests. shrink: what all lengths are divided by; the dispersion stays."""
    prior = None if name == "trace and chats" else scale_to_dispersion(LengthPrior(), PAPER_CV)
    load = draw_prompts(prior, count, seed) if prior else _draw_trace_and_chats(count, seed)
    if shrink == 1:
        return load
    dispersion = load.dispersion
    longest = load.max_tokens // shrink
    return replace(
        load,
        max_tokens=longest,
        prompt_tokens=-(-load.prompt_tokens // shrink),
        output_tokens=-(-load.output_tokens // shrink),
        mu=load.mu - log(shrink),
        trained_on=replace(
            load.trained_on, mu=load.trained_on.mu - log(shrink), max_tokens=longest
        ),
        dispersion=replace(dispersion, mean_tokens=dispersion.mean_tokens / shrink),
    )


@cache
def scale_to_dispersion(prior: LengthPrior, within_cv: float) -> LengthPrior:
    """Multiply all sigmas so that the mean coefficient of variation within a prompt is `within_cv`.

    Found by bisection on a fixed sample, so equal arguments give equal priors.
    """
    low, high = log(1e-3), log(10.0)
    for _ in range(30):
        middle = (low + high) / 2
        draw = np.random.default_rng(SCALE_SEED)
        mu, sigma = prior.draw_parameters(SCALE_PROMPTS, draw)
        lengths = draw_lengths(prior, mu, sigma * exp(middle), draw, SCALE_SAMPLES)
        if (lengths.std(axis=1, ddof=1) / lengths.mean(axis=1)).mean() < within_cv:
            low = middle
        else:
            high = middle
    return replace(prior, sigma=prior.sigma * exp((low + high) / 2))


def draw_prompts(prior: LengthPrior, count: int, seed: int) -> RequestLoad:
    draw = np.random.default_rng(seed)
    mu, sigma = prior.draw_parameters(count, draw)
    lengths = draw_lengths(prior, mu, sigma, draw)[:, 0]
    prompt_tokens = prior.draw_prompt_tokens(count, draw)
    few = slice(0, MEASURED_PROMPTS)
    samples = draw_lengths(prior, mu[few], sigma[few], draw, MEASURED_SAMPLES)
    return RequestLoad(
        seed=seed,
        max_tokens=prior.max_tokens,
        prompt_tokens=prompt_tokens,
        output_tokens=lengths,
        mu=mu,
        sigma=sigma,
        trained_on=prior,
        dispersion=measure_dispersion(samples, prior.max_tokens),
    )


def _draw_trace_and_chats(count: int, seed: int) -> RequestLoad:
    """Problems with a sample of more than `MOST_STEPS` are left out."""
    draw = np.random.default_rng(seed)
    rows = [
        row
        for row in load_trace("math", "smooth").rows
        if max(map(len, row.step_tokens)) <= MOST_STEPS
    ]
    known = [draw_answer_lengths(row, MEASURED_SAMPLES, draw) for row in rows]
    fitted = [fit_log_t(samples, samples >= MAX_TOKENS) for samples in known]
    asked = draw.integers(len(rows), size=count)
    mu = np.array([fitted[i].mu for i in asked])
    sigma = np.array([fitted[i].sigma for i in asked])
    lengths = np.concatenate([draw_answer_lengths(rows[i], 1, draw) for i in asked])
    is_chat = draw.random(count) < CHAT_SHARE
    chats = draw_prompts(LONG_CHATS, count, seed)
    mu, sigma = np.where(is_chat, (chats.mu, chats.sigma), (mu, sigma))
    further = draw_lengths(LONG_CHATS, mu, sigma, draw, MEASURED_SAMPLES)
    samples = [
        further[i] if is_chat[i] else known[row] for i, row in enumerate(asked[:MEASURED_PROMPTS])
    ]
    return RequestLoad(
        seed=seed,
        max_tokens=MAX_TOKENS,
        prompt_tokens=np.where(
            is_chat, chats.prompt_tokens, [rows[i].prompt_tokens for i in asked]
        ),
        output_tokens=np.where(is_chat, chats.output_tokens, lengths),
        mu=mu,
        sigma=sigma,
        trained_on=summarize_parameters(mu, sigma),
        dispersion=measure_dispersion(samples, MAX_TOKENS),
    )


def summarize_parameters(mu: Floats, sigma: Floats) -> LengthPrior:
    """The moments of the requests' parameters."""
    log_sigma = np.log(sigma)
    return LengthPrior(
        mu=float(mu.mean()),
        mu_spread=float(mu.std()),
        sigma=float(np.exp(log_sigma.mean())),
        sigma_spread=float(log_sigma.std()),
        correlation=float(np.corrcoef(mu, log_sigma)[0, 1]),
        max_tokens=MAX_TOKENS,
    )


class WaitingOrder(Protocol):
    """Scores requests by their numbers in the load."""

    def score(self, waiting: Integers, now_s: float) -> Floats:
        """(len(waiting),) scores of these requests, the only ones that wait. The least goes first,
        equal ones by arrival."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class FixedOrder:
    """Scores that do not change while requests wait."""

    scores: Floats

    def score(self, waiting: Integers, now_s: float) -> Floats:
        return self.scores[waiting]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PolicyOrder:
    """A policy of the product that asks only for a program's work and waiting time."""

    policy: Policy
    expected: Floats
    tail: Floats
    """Conditional value at risk: the mean of the longest tenth."""
    arrived_s: Floats
    max_batch: int

    def score(self, waiting: Integers, now_s: float) -> Floats:
        return self.policy.score(
            Queued(
                expected=self.expected[waiting],
                tail=self.tail[waiting],
                waited_s=np.maximum(now_s - self.arrived_s[waiting], 0.0),
                waiting=len(waiting),
                max_batch=self.max_batch,
            )
        )


def sort_waiting(order: WaitingOrder, waiting: Integers, now_s: float) -> Integers:
    """Sort requests by score, equal ones by arrival. waiting: numbers in rising order."""
    return waiting[np.argsort(order.score(waiting, now_s), kind="stable")]


_SHORTEST, _TIE = LeastWork(), LeastWork(tail_weight=None)
_POLICIES: Mapping[str, tuple[Policy, str]] = MappingProxyType(
    {
        "fcfs": (FirstCome(), "true length"),
        "ssjf": (_SHORTEST, "point"),
        "ltr": (_SHORTEST, "rank"),
        "sept": (_SHORTEST, "log-t"),
        "tie": (_TIE, "log-t"),
        "oracle_distribution": (_TIE, "true log-t"),
        "oracle_length": (_SHORTEST, "true length"),
    }
)
NAMES = (*("fcfs", "ssjf", "ltr", "sept", "tie"), "per_token", *list(_POLICIES)[-2:])
POINT_RIVALS = ("ssjf", "ltr")
"""Rivals that predict one number for each request."""


class Rivals:
    """All orders of the same requests. What does not depend on arrivals is computed once."""

    def __init__(self, load: RequestLoad) -> None:
        self._load, prior = load, load.trained_on
        self._work: dict[str, tuple[Floats, Floats]] = {}
        if load.predicted is not None:
            self.mu, self.sigma = load.predicted
            return
        draw = np.random.default_rng([load.seed, 77])
        log_sigma = np.log(np.maximum(load.sigma, 1e-6))
        self.mu = regress(load.mu, prior.mu, prior.mu_spread, EXPLAINED_MU, draw)
        self.sigma = np.exp(
            regress(log_sigma, np.log(prior.sigma), prior.sigma_spread, EXPLAINED_SIGMA, draw)
        )

    def order(self, name: str, arrived_s: Floats, max_batch: int) -> WaitingOrder:
        """The order of this name (`NAMES`)."""
        if name == "per_token":
            lengths = self._spread_lengths()
            inverse = (1 / np.maximum(lengths, 1.0)).mean(axis=1)
            return FixedOrder(scores=lengths.mean(axis=1) / inverse)
        policy, prediction = _POLICIES[name]
        if prediction not in self._work:
            self._work[prediction] = self._estimate(prediction)
        expected, tail = self._work[prediction]
        return PolicyOrder(
            policy=policy, expected=expected, tail=tail, arrived_s=arrived_s, max_batch=max_batch
        )

    def _estimate(self, prediction: str) -> tuple[Floats, Floats]:
        """The expectation and the tail of each length by a prediction, or in truth."""
        load = self._load
        if prediction == "log-t":
            return self._tabulate(map(LogT, self.mu.tolist(), self.sigma.tolist()))
        if prediction == "true log-t":
            return self._tabulate(map(LogT, load.mu.tolist(), load.sigma.tolist()))
        if prediction == "rank":
            tokens = self.list_ranks()
        elif prediction == "point":
            tokens = np.minimum(np.exp(self.mu), load.max_tokens)
        else:
            tokens = load.output_tokens.astype(np.float64)
        return tokens, tokens

    def _tabulate(self, distributions: Iterable[LengthDistribution]) -> tuple[Floats, Floats]:
        found = [compute_figures(one, self._load.max_tokens) for one in distributions]
        return (
            np.array([figures.expected for figures in found]),
            np.array([figures.conditional_value_at_risk for figures in found]),
        )

    def list_ranks(self) -> Floats:
        """The expected rank among outputs of the training workload, in [0, 1]: what a ranking loss
        learns (LTR)."""
        draw, prior = np.random.default_rng(0), self._load.trained_on
        mu, sigma = prior.draw_parameters(_RANK_SAMPLES, draw)
        others = np.sort(draw_lengths(prior, mu, sigma, draw)[:, 0])
        places = np.searchsorted(others, self._spread_lengths())
        return np.asarray(places.mean(axis=1) / len(others))

    def _spread_lengths(self) -> NDArray[np.float64]:
        """(requests, nodes) lengths at even quantiles of each request's predicted distribution."""
        shares = (np.arange(_RANK_NODES) + 0.5) / _RANK_NODES
        logs = np.log(LogT(0.0, 1.0, NU).inverse_survival(1 - shares))
        longest = np.log(self._load.max_tokens)
        lengths: Floats = np.exp(np.minimum(self.mu[:, None] + self.sigma[:, None] * logs, longest))
        return lengths
