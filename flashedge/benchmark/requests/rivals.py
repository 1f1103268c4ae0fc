"""The rivals of TIE, as orders of a waiting queue of single requests.

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
from dataclasses import dataclass
from functools import cached_property
from types import MappingProxyType

import numpy as np

from flashedge.benchmark.requests.orders import FixedOrder, Floats, Integers, WaitingOrder
from flashedge.benchmark.requests.predictions import Predictions, Work, spread_lengths, tabulate
from flashedge.benchmark.requests.prompts import Prompts
from flashedge.scheduling.lengths.families.log_t import LogT
from flashedge.scheduling.lengths.tie import Decay, compute_risk_weight, compute_scores

NO_DECAY = Decay(factor=1.0, interval_s=1.0)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class TailOrder:
    """The expectation, its tail by a weight, and the decay of those that wait."""

    work: Work
    arrived_s: Floats
    """(requests,)"""

    weight: float | None
    """Of the tail. None adapts it to the pressure."""

    max_batch: int
    decay: Decay = NO_DECAY

    def score(self, waiting: Integers, now_s: float) -> Floats:
        weight = self.weight
        if weight is None:
            weight = compute_risk_weight(len(waiting), self.max_batch)
        return compute_scores(
            self.work.expected[waiting],
            self.work.tail[waiting],
            now_s - self.arrived_s[waiting],
            weight=weight,
            decay=self.decay,
        )


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
        """The order of this name (`NAMES`). Raises KeyError for another."""
        if name in _FIXED:
            return FixedOrder(scores=_FIXED[name](self))
        work, weight = _TAILED[name]
        return TailOrder(
            work=work(self),
            arrived_s=arrived_s,
            weight=weight,
            max_batch=max_batch,
            decay=decay,
        )

    @cached_property
    def by_arrival(self) -> Floats:
        return np.zeros(len(self._prompts))

    @cached_property
    def at_random(self) -> Floats:
        return np.random.default_rng([self._seed, 1]).random(len(self._prompts))

    @cached_property
    def by_prefix(self) -> Floats:
        """Half of the requests continue a conversation, whose earlier part is cached."""
        draw = np.random.default_rng([self._seed, 2])
        share = draw.random(len(self._prompts)) * (draw.random(len(self._prompts)) < 0.5)
        cached: Floats = -np.floor(share * self._prompts.prompt_tokens / 16) * 16
        return cached

    @cached_property
    def points(self) -> Floats:
        return self._predictions.list_points()

    @cached_property
    def ranks(self) -> Floats:
        return self._predictions.list_ranks(self._prompts.nu)

    @cached_property
    def true_lengths(self) -> Floats:
        return self._prompts.output_tokens.astype(np.float64)

    @cached_property
    def per_token(self) -> Floats:
        found = self._predictions
        return _weigh_per_token(found.mu, found.sigma, self._prompts)

    @cached_property
    def true_per_token(self) -> Floats:
        return _weigh_per_token(self._prompts.mu, self._prompts.sigma, self._prompts)

    @cached_property
    def log_t(self) -> Work:
        return self._predictions.tabulate_log_t(self._prompts.nu)

    @cached_property
    def free_nu(self) -> Work:
        return self._predictions.tabulate_free_nu()

    @cached_property
    def log_normal(self) -> Work:
        return self._predictions.tabulate_log_normal()

    @cached_property
    def true_log_t(self) -> Work:
        known = self._prompts
        pairs = zip(known.mu, known.sigma, strict=True)
        return tabulate([LogT(float(m), float(s), known.nu) for m, s in pairs], known.max_tokens)


def _weigh_per_token(mu: Floats, sigma: Floats, prompts: Prompts) -> Floats:
    lengths = spread_lengths(mu, sigma, prompts.nu, prompts.max_tokens)
    return np.asarray(lengths.mean(axis=1) / (1 / np.maximum(lengths, 1.0)).mean(axis=1))


_FIXED: Mapping[str, Callable[[Rivals], Floats]] = MappingProxyType(
    {
        "fcfs": lambda rivals: rivals.by_arrival,
        "random": lambda rivals: rivals.at_random,
        "prefix": lambda rivals: rivals.by_prefix,
        "ssjf": lambda rivals: rivals.points,
        "ltr": lambda rivals: rivals.ranks,
        "per_token": lambda rivals: rivals.per_token,
        "oracle_per_token": lambda rivals: rivals.true_per_token,
        "oracle_length": lambda rivals: rivals.true_lengths,
    }
)
_TAILED: Mapping[str, tuple[Callable[[Rivals], Work], float | None]] = MappingProxyType(
    {
        "sept": (lambda rivals: rivals.log_t, 0.0),
        "tie": (lambda rivals: rivals.log_t, None),
        "tie_01": (lambda rivals: rivals.log_t, 0.1),
        "tie_05": (lambda rivals: rivals.log_t, 0.5),
        "log_normal": (lambda rivals: rivals.log_normal, None),
        "free_nu": (lambda rivals: rivals.free_nu, None),
        "oracle_distribution": (lambda rivals: rivals.true_log_t, None),
    }
)
NAMES = (*_FIXED, *_TAILED)
POINT_RIVALS = ("ssjf", "ltr")
"""Rivals that predict one number for each request."""
