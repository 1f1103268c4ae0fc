"""The gate of boosting: it finds how many rollouts may be in flight, so that they gain more than
they cost.

The paper has a constant M and was slower with boosting in one of four configurations: rollouts
that were not needed kept others waiting. Here M is the number of rollouts with which the engines
finish most rollouts a second, as far as

- they fit into the free KV memory and the engine's batch
- no sequence of anybody else becomes slower than without boosting by more than the margin
- the gain is worth the rollouts that will be cancelled.

Each rollout makes the batch larger and every token later, by the measured curves. Whoever waits in
the queue comes in sooner where more is done. Where a request waits in an engine for room, M is the
number of runs, so that each has one rollout. Ours, not the paper's.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from flashedge.scheduling.rollouts.allocation import Allocation, Allocator
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
    that are cancelled when their run ends, and for what the curves leave out: the time of the
    daemon itself. On one core, where that is nearly half, a predicted gain of 1.25 was none."""

    def open(
        self,
        runs: Sequence[Contender],
        allocator: Allocator,
        load: EngineLoad,
        cost: RolloutCost | None,
        now_s: float,
    ) -> Opening:
        """Find the number of rollouts. cost: None where the device was not measured, which keeps
        the gate closed."""
        least = len(runs)
        if load.has_waiting:
            return Opening(budget=least, reason="requests wait in an engine")
        if cost is None:
            return Opening(budget=least, reason="the speed of the engines is not known")
        growing = [run for run in runs if allocator.can_grow(run)]
        if not growing:
            return Opening(budget=least, reason="no run has a use for more")
        most = least + sum(run.most - 1 for run in growing)
        alone_s = _count_token_s(runs, {run.key: 1 for run in runs}, load, cost)
        best, found, reason = self.least_gain, least, "more would gain too little"
        for budget in range(least + 1, most + 1):
            allocation = allocator.divide(runs, budget, now_s)
            slowdown = _count_token_s(runs, allocation, load, cost) / alone_s
            if limit := self._find_limit(runs, allocation, load, slowdown):
                return Opening(budget=found, reason=limit if found == budget - 1 else reason)
            gain = sum(allocation.values()) / len(runs) / slowdown
            if gain > best:
                best, found = gain, budget
        if found == most:
            reason = "the runs have a use for no more"
        return Opening(budget=found, reason=reason)

    def _find_limit(
        self,
        runs: Sequence[Contender],
        allocation: Allocation,
        load: EngineLoad,
        slowdown: float,
    ) -> str | None:
        """What speaks against so many rollouts, whatever they gain. It speaks against more as
        well."""
        if not _fits_kv(runs, allocation, load):
            return "the KV memory is full"
        if _count_sequences(runs, allocation, load) > load.max_sequences:
            return "the batch is full"
        if load.others and slowdown > 1.0 + self.margin:
            return "more would slow others down"
        return None


def _count_token_s(
    runs: Sequence[Contender], allocation: Allocation, load: EngineLoad, cost: RolloutCost
) -> float:
    rollouts = sum(allocation.values())
    sequences = sum(run.branching * allocation[run.key] for run in runs)
    return cost.count_token_s(load.others, rollouts, max(1, round(sequences / max(1, rollouts))))


def _count_sequences(runs: Sequence[Contender], allocation: Allocation, load: EngineLoad) -> int:
    return load.others + sum(run.branching * allocation[run.key] for run in runs)


def _fits_kv(runs: Sequence[Contender], allocation: Allocation, load: EngineLoad) -> bool:
    """Whether the rollouts beyond the first of each run fit into the free memory."""
    more = sum(run.path_tokens * max(0, allocation[run.key] - 1) for run in runs)
    return more <= load.free_kv_tokens
