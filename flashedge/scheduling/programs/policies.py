"""Policies: which waiting program goes first.

A policy gives each program a score, and the lowest goes first. The default is `shortest`: in
simulation nothing else has a lower mean latency, and the tail weight of TIE costs some of it
(docs/results/scheduling.md). Rivals that predict one length, or a rank, are the same policy over
distributions of one point: `shortest` over point predictions is SSJF, over ranks LTR, over true
lengths the oracle. Scores of `shortest` and `tie` are halved for every 5 s of waiting.

| name | the program that goes first |
|---|---|
| fcfs | the one that arrived first: the naive twin of all others |
| gang | the one that arrived first, with all its requests together: gang scheduling alone |
| prefix | the one with the most prompt tokens in the cache (SGLang's longest prefix match) |
| random | a random one, the same for the same key |
| shortest | the one with the least expected work: SEPT, or SSJF and LTR by their predictors |
| tie | the one with the least expected work and tail risk, by an adaptive weight |
| tie_01, tie_05 | the same with a fixed weight of the tail and without decay, for comparison |
| fair_finish | the one whose finish time is the worst for its size |

Ref: arXiv 2604.00499 §4, App. C.1; arXiv 2412.20993 App. D.3.1.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import blake2b
from types import MappingProxyType
from typing import Protocol

import numpy as np

from flashedge.scheduling.lengths.distribution import Floats
from flashedge.scheduling.lengths.tie import (
    MEASURED_DECAY,
    Decay,
    compute_risk_weight,
    compute_scores,
)
from flashedge.scheduling.programs.table import ProgramTable

NO_DECAY = Decay(factor=1.0, interval_s=1.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Pressure:
    """How crowded the engines are."""

    waiting: int
    """Programs that wait."""

    max_batch: int
    """Sequences that the generator computes at once."""


class Policy(Protocol):
    """Scores programs. Holds configuration only."""

    def score(self, table: ProgramTable, pressure: Pressure) -> Floats:
        """(len(table.programs),) The lowest score goes first. Equal scores go by arrival, then by
        key."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class FirstCome:
    """By arrival of the program. Under `fcfs` engines keep the order in which single requests came;
    under `gang` they follow this one, so that a program's later requests pass other programs'."""

    def score(self, table: ProgramTable, pressure: Pressure) -> Floats:
        return -table.waited_s


@dataclass(frozen=True, slots=True, kw_only=True)
class LongestPrefix:
    """By how much of the prompt the cache already holds."""

    def score(self, table: ProgramTable, pressure: Pressure) -> Floats:
        return np.array([-float(program.shared_tokens) for program in table.programs])


@dataclass(frozen=True, slots=True, kw_only=True)
class RandomOrder:
    """By a hash of the key, so that the order does not change while programs wait."""

    seed: int = 0

    def score(self, table: ProgramTable, pressure: Pressure) -> Floats:
        return np.array([_draw(f"{self.seed}/{program.key}") for program in table.programs])


@dataclass(frozen=True, slots=True, kw_only=True)
class ShortestExpected:
    """By expected work that is left."""

    decay: Decay = NO_DECAY

    def score(self, table: ProgramTable, pressure: Pressure) -> Floats:
        return compute_scores(
            table.expected, table.tail, table.waited_s, weight=0.0, decay=self.decay
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class TailInflated:
    """By expected work and its tail (TIE)."""

    weight: float | None = None
    """Of the tail. None adapts it to the pressure, as the paper does."""

    decay: Decay = NO_DECAY

    def score(self, table: ProgramTable, pressure: Pressure) -> Floats:
        weight = self.weight
        if weight is None:
            weight = compute_risk_weight(pressure.waiting, pressure.max_batch)
        return compute_scores(
            table.expected, table.tail, table.waited_s, weight=weight, decay=self.decay
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class FairFinish:
    """By finish-time fairness: the one whose time in the system is the longest for its size.

    The paper's measure is the time in the shared system over the output tokens, which stand for the
    time alone. Before the end both are estimates.
    """

    seconds_per_token: float = 0.01

    def score(self, table: ProgramTable, pressure: Pressure) -> Floats:
        drawn = np.array([float(program.drawn_tokens) for program in table.programs])
        left_s = table.expected * self.seconds_per_token
        alone_s = np.maximum(drawn * self.seconds_per_token + left_s, self.seconds_per_token)
        return np.asarray(-(table.waited_s + left_s) / alone_s)


def _draw(text: str) -> float:
    """A number in [0, 1) that depends on the text alone."""
    return int.from_bytes(blake2b(text.encode(), digest_size=6).digest(), "big") / 2**48


POLICIES: Mapping[str, Policy] = MappingProxyType(
    {
        "fcfs": FirstCome(),
        "gang": FirstCome(),
        "prefix": LongestPrefix(),
        "random": RandomOrder(),
        "shortest": ShortestExpected(decay=MEASURED_DECAY),
        "tie": TailInflated(decay=MEASURED_DECAY),
        "tie_01": TailInflated(weight=0.1),
        "tie_05": TailInflated(weight=0.5),
        "fair_finish": FairFinish(),
    }
)
"""By the name that `scheduling_policy` gives them."""
