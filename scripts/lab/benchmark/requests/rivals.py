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

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from types import MappingProxyType

import numpy as np

from flashedge.scheduling.lengths.distribution import LogT
from flashedge.scheduling.lengths.tie import Decay
from flashedge.scheduling.programs.policies import (
    NO_DECAY,
    FirstCome,
    LeastWork,
    Policy,
    Queued,
)
from scripts.lab.benchmark.requests.orders import FixedOrder, Floats, Integers, WaitingOrder
from scripts.lab.benchmark.requests.predictions import (
    ExpectedWork,
    Predictions,
    spread_lengths,
    tabulate,
)
from scripts.lab.benchmark.requests.prompts import Prompts


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

    def order(
        self, name: str, arrived_s: Floats, max_batch: int, decay: Decay = NO_DECAY
    ) -> WaitingOrder:
        """The order of this name (`NAMES`). Raises KeyError for another.

        decay: of the scores of policies by expected work; the others have none.
        """
        if name in _FIXED:
            return FixedOrder(scores=_FIXED[name](self))
        policy, work = _BY_WORK[name]
        if isinstance(policy, LeastWork):
            policy = replace(policy, decay=decay)
        return PolicyOrder(policy=policy, work=work(self), arrived_s=arrived_s, max_batch=max_batch)

    @cached_property
    def at_random(self) -> Floats:
        return np.random.default_rng([self._seed, 3]).random(len(self._prompts))

    @cached_property
    def by_prefix(self) -> Floats:
        """The longest cached part of the prompt first. Half of the requests continue a
        conversation, of whose earlier part a share is cached."""
        draw = np.random.default_rng([self._seed, 2])
        share = draw.random(len(self._prompts)) * (draw.random(len(self._prompts)) < 0.5)
        return -np.floor(share * self._prompts.prompt_tokens / 16) * 16

    @cached_property
    def per_token(self) -> Floats:
        found = self._predictions
        return _weigh_per_token(found.mu, found.sigma, self._prompts)

    @cached_property
    def true_per_token(self) -> Floats:
        return _weigh_per_token(self._prompts.mu, self._prompts.sigma, self._prompts)

    @cached_property
    def points(self) -> ExpectedWork:
        return ExpectedWork.of_points(self._predictions.list_points())

    @cached_property
    def ranks(self) -> ExpectedWork:
        return ExpectedWork.of_points(self._predictions.list_ranks(self._prompts.nu))

    @cached_property
    def true_lengths(self) -> ExpectedWork:
        return ExpectedWork.of_points(self._prompts.output_tokens.astype(np.float64))

    @cached_property
    def log_t(self) -> ExpectedWork:
        return self._predictions.tabulate_log_t(self._prompts.nu)

    @cached_property
    def free_nu(self) -> ExpectedWork:
        return self._predictions.tabulate_free_nu()

    @cached_property
    def log_normal(self) -> ExpectedWork:
        return self._predictions.tabulate_log_normal()

    @cached_property
    def true_log_t(self) -> ExpectedWork:
        known = self._prompts
        pairs = zip(known.mu, known.sigma, strict=True)
        return tabulate([LogT(float(m), float(s), known.nu) for m, s in pairs], known.max_tokens)


def _weigh_per_token(mu: Floats, sigma: Floats, prompts: Prompts) -> Floats:
    lengths = spread_lengths(mu, sigma, prompts.nu, prompts.max_tokens)
    return np.asarray(lengths.mean(axis=1) / (1 / np.maximum(lengths, 1.0)).mean(axis=1))


_FIXED: Mapping[str, Callable[[Rivals], Floats]] = MappingProxyType(
    {
        "random": lambda rivals: rivals.at_random,
        "prefix": lambda rivals: rivals.by_prefix,
        "per_token": lambda rivals: rivals.per_token,
        "oracle_per_token": lambda rivals: rivals.true_per_token,
    }
)
_SHORTEST, _TIE = LeastWork(), LeastWork(tail_weight=None)
_BY_WORK: Mapping[str, tuple[Policy, Callable[[Rivals], ExpectedWork]]] = MappingProxyType(
    {
        "fcfs": (FirstCome(), lambda rivals: rivals.true_lengths),
        "ssjf": (_SHORTEST, lambda rivals: rivals.points),
        "ltr": (_SHORTEST, lambda rivals: rivals.ranks),
        "sept": (_SHORTEST, lambda rivals: rivals.log_t),
        "tie": (_TIE, lambda rivals: rivals.log_t),
        "tie_01": (LeastWork(tail_weight=0.1), lambda rivals: rivals.log_t),
        "tie_05": (LeastWork(tail_weight=0.5), lambda rivals: rivals.log_t),
        "log_normal": (_TIE, lambda rivals: rivals.log_normal),
        "free_nu": (_TIE, lambda rivals: rivals.free_nu),
        "oracle_distribution": (_TIE, lambda rivals: rivals.true_log_t),
        "oracle_length": (_SHORTEST, lambda rivals: rivals.true_lengths),
    }
)
NAMES = (
    *("fcfs", "random", "prefix", "ssjf", "ltr", "sept"),
    *("tie", "tie_01", "tie_05", "log_normal", "free_nu", "per_token"),
    *("oracle_distribution", "oracle_per_token", "oracle_length"),
)
POINT_RIVALS = ("ssjf", "ltr")
"""Rivals that predict one number for each request."""
