"""Policies: which waiting program goes first.

A policy gives each program a score, and the lowest goes first.

| name | the program that goes first |
|---|---|
| fcfs | the one that arrived first: the baseline |
| gang | the one that arrived first, with all its requests together: gang scheduling alone |
| shortest | the one with the least expected work (shortest expected processing time) |
| tie | the one with the least expected work and tail risk, by an adaptive weight |

The default is `shortest`: with the lengths of real answers the tail weight of `tie` brings nothing
over it (docs/results/scheduling.md). Both halve a score for every 5 s of waiting.

Ref: arXiv 2604.00499 §4, App. C.1; arXiv 2412.20993 App. D.3.1.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Protocol

import numpy as np

from flashedge.scheduling.lengths.distribution import Floats

LEAST_WEIGHT, GREATEST_WEIGHT = 0.1, 0.5  # bounds of λ in eq. (12)


@dataclass(frozen=True, slots=True, kw_only=True)
class Decay:
    """How a score falls while its request waits, so that long requests are not starved. Raises
    ValueError for impossible figures."""

    factor: float
    """γ in (0, 1]: what each interval multiplies a score by. 1 turns the decay off."""
    interval_s: float
    """Δ: seconds between two steps of the decay, positive."""

    def __post_init__(self) -> None:
        if not 0 < self.factor <= 1:
            raise ValueError(f"the decay's factor is {self.factor}, but must be in (0, 1]")
        if not self.interval_s > 0:
            raise ValueError(f"the decay's interval is {self.interval_s} s, but must be positive")


MEASURED_DECAY = Decay(factor=0.5, interval_s=5.0)
"""γ and Δ, whose values the paper's text lacks. Chosen on 24 November 2026 in a simulation with
made-up lengths: of 30 pairs whose mean latencies are within 2 % of those without decay, the one
whose longest wait is shortest. With longer answers it costs more (docs/results/scheduling.md)."""


def compute_risk_weight(waiting: int, max_batch: int) -> float:
    """λ: the longer the queue, the more a long output blocks. waiting: sequences in the queue.
    max_batch: sequences that run at once, at least 1. Raises ValueError if it is less. Ref: arXiv
    2604.00499 eq. (12)."""
    if max_batch < 1:
        raise ValueError(f"max_batch is {max_batch}, but must be at least 1")
    return min(max(waiting / max_batch, LEAST_WEIGHT), GREATEST_WEIGHT)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Queued:
    """What policies know of the programs, as arrays (num_programs,), and of the queue."""

    expected: Floats
    """Tokens that are left."""
    tail: Floats
    """Mean tokens that are left in the worst tenth of the cases (CVaR)."""
    waited_s: Floats
    """Seconds since arrival."""
    waiting: int
    """Sequences of the programs that have not started: what the paper calls waiting requests."""
    max_batch: int
    """Sequences that the generator computes at once."""


class Policy(Protocol):
    def score(self, now: Queued) -> Floats:
        """The lowest score goes first. Equal scores go by arrival, then by key."""
        ...


@dataclass(frozen=True, slots=True)
class FirstCome:
    """Orders by the program's arrival. Under `fcfs` engines keep the order in which single requests
    came; under `gang` they follow the order of the programs."""

    def score(self, now: Queued) -> Floats:
        return -now.waited_s


@dataclass(frozen=True, slots=True, kw_only=True)
class LeastWork:
    """Orders by the expected work that is left, inflated by its tail, and decayed by the wait:
    (E + λ·CVaR)·γ^⌊waited / Δ⌋. A negative wait, from a clock that was set back, counts as 0. Ref:
    arXiv 2604.00499 eq. (11)."""

    tail_weight: float | None = 0.0
    """λ. None adapts it to the length of the queue, as TIE does."""
    decay: Decay = Decay(factor=1.0, interval_s=1.0)

    def score(self, now: Queued) -> Floats:
        weight = self.tail_weight
        if weight is None:
            weight = compute_risk_weight(now.waiting, now.max_batch)
        steps = np.floor(np.maximum(now.waited_s, 0) / self.decay.interval_s)
        return (now.expected + weight * now.tail) * self.decay.factor**steps


POLICIES: Mapping[str, Policy] = MappingProxyType(
    {
        "fcfs": FirstCome(),
        "gang": FirstCome(),
        "shortest": LeastWork(decay=MEASURED_DECAY),
        "tie": LeastWork(tail_weight=None, decay=MEASURED_DECAY),
    }
)
"""By the name that `scheduling_policy` gives them."""
