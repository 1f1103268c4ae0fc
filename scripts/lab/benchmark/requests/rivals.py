"""The rivals of TIE, as orders of a waiting queue of single requests, by the policies of the product.

| name | the order |
|---|---|
| fcfs | by arrival: the naive twin |
| random | a random one |
| prefix | the longest cached part of the prompt first; requests share no KV here, so it shows only what this order costs |
| ssjf | a predicted length, the shortest first |
| ltr | a predicted rank, the least first |
| sept | the predicted expectation |
| tie | the predicted expectation and tail, by an adaptive weight |
| tie_01, tie_05 | the same with a fixed weight |
| log_normal | tie on a predicted log-normal distribution |
| free_nu | tie on a predicted log-t distribution whose degrees of freedom are predicted too |
| per_token | predicted E[X] / E[1 / X]; ours: Smith's rule, since a request's weight in the mean latency per token is 1 / X |
| oracle_distribution | tie, which knows each prompt's distribution |
| oracle_per_token | per_token, which knows each prompt's distribution |
| oracle_length | the true lengths |

Ref: arXiv 2604.00499 §6.1, App. C.1.
"""  # noqa: E501

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from itertools import repeat
from types import MappingProxyType

import numpy as np

from flashedge.scheduling.lengths.distribution import LengthDistribution, LogT
from flashedge.scheduling.programs.policies import (
    NO_DECAY,
    Decay,
    FirstCome,
    LeastWork,
    Policy,
    Queued,
)
from scripts.lab.benchmark.requests.event_driven import FixedOrder, Floats, Integers, WaitingOrder
from scripts.lab.benchmark.requests.predictions import (
    LOG_NORMAL_SPREAD,
    ExpectedWork,
    Predictions,
    spread_lengths,
    tabulate,
)
from scripts.lab.benchmark.requests.prompts import Prompts
from scripts.lab.distributions import LogNormal


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PolicyOrder:
    """A policy of the product that asks only for a program's work and waiting time."""

    policy: Policy
    work: ExpectedWork
    arrived_s: Floats
    """(requests,)"""

    max_batch: int

    def score(self, waiting: Integers, now_s: float) -> Floats:
        queued = Queued(
            expected=self.work.expected[waiting],
            tail=self.work.tail[waiting],
            waited_s=np.maximum(now_s - self.arrived_s[waiting], 0.0),
            waiting=len(waiting),
            max_batch=self.max_batch,
        )
        return self.policy.score(queued)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class EscalatingOrder:
    """Another order, but those that waited for so long go first, by arrival."""

    inner: WaitingOrder
    arrived_s: Floats
    after_s: float

    def score(self, waiting: Integers, now_s: float) -> Floats:
        arrived_s = self.arrived_s[waiting]
        scores = self.inner.score(waiting, now_s)
        least = min(float(scores.min()), 0.0) - 1.0
        early = now_s - arrived_s >= self.after_s
        return np.where(early, least - (now_s - arrived_s), scores)


class Rivals:
    """All orders of the same requests. What does not depend on arrivals is computed once."""

    def __init__(self, prompts: Prompts, predictions: Predictions, seed: int) -> None:
        self._prompts = prompts
        self._predictions = predictions
        self._seed = seed
        self._scores: dict[str, Floats] = {}
        self._work: dict[str, ExpectedWork] = {}

    def order(
        self, name: str, arrived_s: Floats, max_batch: int, decay: Decay = NO_DECAY
    ) -> WaitingOrder:
        """The order of this name (`NAMES`). Raises KeyError for another.

        decay: of the scores of policies by expected work; the others have none.
        """
        if name in _FIXED:
            if name not in self._scores:
                self._scores[name] = self._score(name)
            return FixedOrder(scores=self._scores[name])
        policy, prediction = _BY_WORK[name]
        if isinstance(policy, LeastWork):
            policy = replace(policy, decay=decay)
        if prediction not in self._work:
            self._work[prediction] = self._estimate(prediction)
        return PolicyOrder(
            policy=policy, work=self._work[prediction], arrived_s=arrived_s, max_batch=max_batch
        )

    def _score(self, name: str) -> Floats:
        known = self._prompts
        if name == "random":
            return np.random.default_rng([self._seed, 3]).random(len(known))
        if name == "prefix":
            # Half of the requests continue a conversation, of whose earlier part a share is cached.
            draw = np.random.default_rng([self._seed, 2])
            share = draw.random(len(known)) * (draw.random(len(known)) < 0.5)
            return -np.floor(share * known.prompt_tokens / 16) * 16
        told = self._predictions if name == "per_token" else known
        lengths = spread_lengths(told.mu, told.sigma, known.nu, known.max_tokens)
        return np.asarray(lengths.mean(axis=1) / (1 / np.maximum(lengths, 1.0)).mean(axis=1))

    def _estimate(self, prediction: str) -> ExpectedWork:
        """What a prediction, or the truth, says of each request's length."""
        known, said = self._prompts, self._predictions
        mu, sigma = said.mu.tolist(), said.sigma.tolist()
        distributions: Iterable[LengthDistribution] = ()
        match prediction:
            case "true length":
                return ExpectedWork.of_points(known.output_tokens.astype(np.float64))
            case "point":
                return ExpectedWork.of_points(said.list_points())
            case "rank":
                return ExpectedWork.of_points(said.list_ranks(known.nu))
            case "log-t":
                distributions = map(LogT, mu, sigma, repeat(known.nu))
            case "log-t, free nu":
                distributions = map(LogT, mu, sigma, said.nu.tolist())
            case "log-normal":
                distributions = map(LogNormal, mu, (said.sigma * LOG_NORMAL_SPREAD).tolist())
            case "true log-t":
                distributions = map(LogT, known.mu.tolist(), known.sigma.tolist(), repeat(known.nu))
        return tabulate(distributions, known.max_tokens)


_FIXED = ("random", "prefix", "per_token", "oracle_per_token")
_SHORTEST, _TIE = LeastWork(), LeastWork(tail_weight=None)
_BY_WORK: Mapping[str, tuple[Policy, str]] = MappingProxyType(
    {
        "fcfs": (FirstCome(), "true length"),
        "ssjf": (_SHORTEST, "point"),
        "ltr": (_SHORTEST, "rank"),
        "sept": (_SHORTEST, "log-t"),
        "tie": (_TIE, "log-t"),
        "tie_01": (LeastWork(tail_weight=0.1), "log-t"),
        "tie_05": (LeastWork(tail_weight=0.5), "log-t"),
        "log_normal": (_TIE, "log-normal"),
        "free_nu": (_TIE, "log-t, free nu"),
        "oracle_distribution": (_TIE, "true log-t"),
        "oracle_length": (_SHORTEST, "true length"),
    }
)
NAMES = (
    *("fcfs", "random", "prefix", "ssjf", "ltr", "sept"),
    *("tie", "tie_01", "tie_05", "log_normal", "free_nu", "per_token"),
    *("oracle_distribution", "oracle_per_token", "oracle_length"),
)
POINT_RIVALS = ("ssjf", "ltr")
"""Rivals that predict one number for each request."""
