"""Policies: which waiting program goes first.

A policy gives each program a score, and the lowest goes first.

| name | the program that goes first |
|---|---|
| fcfs | the one that arrived first: the baseline |
| gang | the one that arrived first, with all its requests together: gang scheduling alone |
| shortest | the one with the least expected work (SEPT; with point predictions SSJF) |
| tie | the one with the least expected work and tail risk, by an adaptive weight |

The default is `shortest`: in simulation nothing else has a lower mean latency, and the tail weight
of TIE costs some of it (docs/results/scheduling.md). Scores of both are halved for every 5 s of
waiting.

Ref: arXiv 2604.00499 §4, App. C.1; arXiv 2412.20993 App. D.3.1.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Protocol

from flashedge.scheduling.lengths.distribution import Floats
from flashedge.scheduling.lengths.tie import (
    MEASURED_DECAY,
    Decay,
    compute_risk_weight,
    compute_scores,
)

NO_DECAY = Decay(factor=1.0, interval_s=1.0)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Queued:
    """What policies know of the programs, as arrays of one shape, and how crowded it is."""

    expected: Floats
    """Tokens that are left, as expected."""

    tail: Floats
    """Tokens that are left in the worst tenth of the cases."""

    waited_s: Floats
    """Since the arrival."""

    waiting: int
    """Programs that wait."""

    max_batch: int
    """Sequences that the generator computes at once."""


class Policy(Protocol):
    """Scores programs. Holds configuration only."""

    def score(self, now: Queued) -> Floats:
        """The lowest score goes first. Equal scores go by arrival, then by key."""
        ...


@dataclass(frozen=True, slots=True)
class FirstCome:
    """By arrival of the program. Under `fcfs` engines keep the order in which single requests came;
    under `gang` they follow this one, so that a program's later requests pass other programs'."""

    def score(self, now: Queued) -> Floats:
        return -now.waited_s


@dataclass(frozen=True, slots=True, kw_only=True)
class LeastWork:
    """By the expected work that is left, inflated by its tail."""

    tail_weight: float | None = 0.0
    """λ. None adapts it to the pressure on the queue, as TIE does."""

    decay: Decay = NO_DECAY

    def score(self, now: Queued) -> Floats:
        weight = self.tail_weight
        if weight is None:
            weight = compute_risk_weight(now.waiting, now.max_batch)
        return compute_scores(now.expected, now.tail, now.waited_s, weight=weight, decay=self.decay)


POLICIES: Mapping[str, Policy] = MappingProxyType(
    {
        "fcfs": FirstCome(),
        "gang": FirstCome(),
        "shortest": LeastWork(decay=MEASURED_DECAY),
        "tie": LeastWork(tail_weight=None, decay=MEASURED_DECAY),
    }
)
"""By the name that `scheduling_policy` gives them."""
