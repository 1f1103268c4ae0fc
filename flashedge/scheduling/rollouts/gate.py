"""The gate of boosting: it finds how many rollouts may be in flight, so that they gain more than
they cost.

The paper has a constant M and was slower with boosting in one of four configurations: rollouts
that were not needed kept others waiting. Here M is the number of rollouts with which the engines
finish most rollouts a second, as far as

- they fit into the free KV memory and the engine's batch
- no sequence of anybody else becomes slower than without boosting by more than the margin
- the gain is worth the rollouts that will be cancelled.

Each rollout makes the batch larger and every token later, by the measured curves and by the time
that the daemon takes for a token. Rollouts more are taken to be of a mean kind. Whoever waits in
the queue comes in sooner where more is done. Where a request waits in an engine for room, M is the
number of runs, so that each has one rollout. Ours, not the paper's.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf
from statistics import fmean
from typing import NamedTuple

from flashedge.scheduling.rollouts.allocation import Allocator
from flashedge.scheduling.rollouts.contender import Contender
from flashedge.scheduling.rollouts.rollout_cost import RolloutCost


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineLoad:
    """What the engines do now."""

    has_waiting: bool
    """Whether a request waits in an engine for room."""

    others: int
    """Sequences of the generator that belong to no contender."""

    free_kv_tokens: float
    """Tokens whose KV still fits into each engine beside what contenders with one rollout hold."""

    max_sequences: int
    """Most sequences of contenders and others in one step of the generator."""


IDLE = EngineLoad(has_waiting=False, others=0, free_kv_tokens=inf, max_sequences=1 << 30)
"""Engines that have room for everything."""


class Needed(NamedTuple):
    """What a number of rollouts needs."""

    kv_tokens: float
    """Tokens of the rollouts beyond the first of each run."""

    sequences: int
    """Sequences of all rollouts and of others."""

    slowdown: float
    """How many times as long others wait for a token as beside one rollout of each run."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Opening:
    """What the gate lets through."""

    budget: int
    """M: rollouts of all contenders together."""

    reason: str
    """Why there are no more, in a few words."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Gate:
    """Finds M."""

    margin: float = 0.2
    """How much slower than without boosting a token of others may become: of chats, and of searches
    that are not boosted."""

    least_gain: float = 1.3
    """How many times as many rollouts a second there must be for any to be added. It pays for those
    that are cancelled when their run ends, and for what no curve shows. On one core a predicted
    gain of 1.25 was none, before the time of the daemon was counted."""

    def open(
        self,
        runs: Sequence[Contender],
        allocator: Allocator,
        load: EngineLoad,
        cost: RolloutCost | None,
    ) -> Opening:
        """Find the number of rollouts. cost: None where the device was not measured, which keeps
        the gate closed.

        What gains does not depend on the load, which only limits it: where nothing gains with
        `IDLE`, nothing does.
        """
        least = len(runs)
        if load.has_waiting:
            return Opening(budget=least, reason="requests wait in an engine")
        if cost is None:
            return Opening(budget=least, reason="the speed of the engines is not known")
        growing = [run for run in runs if allocator.find_most(run) > 1]
        if not growing:
            return Opening(budget=least, reason="no run has a use for more")
        most = least + sum(allocator.find_most(run) - 1 for run in growing)
        own = sum(run.branching for run in runs)
        branching = fmean(run.branching for run in growing)
        path_tokens = fmean(run.path_tokens for run in growing)
        token_s = cost.predict_token_s(branching)
        alone_s, beside_s = token_s(own, least), token_s(load.others + own, least)
        best, found, reason = self.least_gain, least, "more would gain too little"
        for budget in range(least + 1, most + 1):
            sequences = own + round((budget - least) * branching)
            needed = Needed(
                kv_tokens=(budget - least) * path_tokens,
                sequences=load.others + sequences,
                slowdown=token_s(load.others + sequences, budget) / beside_s,
            )
            if limit := self._find_limit(needed, load):
                return Opening(budget=found, reason=limit if found == budget - 1 else reason)
            gain = budget / least * alone_s / token_s(sequences, budget)
            if gain > best:
                best, found = gain, budget
        if found == most:
            reason = "the runs have a use for no more"
        return Opening(budget=found, reason=reason)

    def _find_limit(self, needed: Needed, load: EngineLoad) -> str | None:
        """What speaks against so many rollouts, whatever they gain. It speaks against more as
        well."""
        if needed.kv_tokens > load.free_kv_tokens:
            return "the KV memory is full"
        if needed.sequences > load.max_sequences:
            return "the batch is full"
        if load.others and needed.slowdown > 1.0 + self.margin:
            return "more would slow others down"
        return None
