"""Limits boosting: finds how many rollouts may be in flight, so that they gain more than they cost.

The paper has a constant M. In one of its four configurations boosting made runs slower, because
rollouts that were not needed kept others waiting. Here M is the number of rollouts with which the
engines finish the most rollouts a second, as long as

- they fit into the free KV memory and the engine's batch
- boosting slows down no sequence of other programs by more than the margin
- the gain is worth the rollouts that will be cancelled.

An extra rollout is assumed to branch, and to hold tokens, like the mean of those that may be added.
Where a request waits in an engine for room, M is the number of runs, so that each has one rollout.
This is ours, not the paper's.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import inf
from statistics import fmean

from flashedge.scheduling.costs import CostCurve
from flashedge.scheduling.rollouts.allocation import Allocator, RolloutCandidate

LEVEL_TOKENS = 64
"""Decode steps of a level that was never measured: the length of the longest of a few children. An
assumption, which the first measured level replaces."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RolloutCost:
    """Predicts the time between two tokens with a number of rollouts, by measured curves. A rollout
    adds its children to every decode step, and a pass of the verifier to every level. Where both
    engines compute on one device, that pass delays the decode steps; otherwise the slower engine
    sets the pace. The same holds for the daemon, which handles every token."""

    generator: CostCurve
    verifier: CostCurve
    shares_device: bool
    """Whether a pass of the verifier delays the generator."""
    shares_daemon: bool = False
    """Whether the daemon's work delays the engines."""
    daemon_s: float = 0.0
    """Seconds of the daemon's work for one token of one sequence."""
    context: float = 256.0
    """Tokens of a typical path."""
    level_tokens: float = LEVEL_TOKENS
    """Decode steps of a level."""

    def predict_token_s(self, branching: float) -> Callable[[int, int], float]:
        """Predict the seconds from one token of a sequence to the next one. The function takes the
        sequences of the generator, and the rollouts among them. branching: sequences of a
        rollout."""
        decode_s = self.generator.decode_at(self.context)
        # A level lasts as long as its longest child; a mean child is taken to be half as long.
        pass_s = self.verifier.prefill_at(self.context, self.level_tokens / 2)(round(branching))

        def predict(sequences: int, rollouts: int) -> float:
            batch = max(1, sequences)
            verifying_s = rollouts * pass_s / self.level_tokens
            engines_s = _join(decode_s(batch), verifying_s, self.shares_device)
            return _join(engines_s, batch * self.daemon_s, self.shares_daemon)

        return predict


def _join(one_s: float, other_s: float, shared: bool) -> float:
    """Seconds of two pieces of work: one after the other on shared processors, else at once."""
    return one_s + other_s if shared else max(one_s, other_s)


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineLoad:
    has_waiting: bool
    """Whether a request waits in an engine for room."""
    others: int
    """Sequences of the generator that belong to no candidate."""
    free_kv_tokens: float
    """Tokens whose KV still fits into each engine if each candidate has one rollout."""
    max_sequences: int
    """Most sequences in one step of the generator."""


IDLE = EngineLoad(has_waiting=False, others=0, free_kv_tokens=inf, max_sequences=1 << 30)
"""Engines that have room for everything."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Limit:
    budget: int
    """M: rollouts of all candidates together."""
    reason: str
    """Why there are no more, in a few words."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RolloutLimiter:
    """Finds M."""

    margin: float = 0.2
    """Share by which boosting may delay a token of chats and other searches. Chosen by hand: with
    0.02 these would stop all boosting, and with 2 they would take three times as long."""
    least_gain: float = 1.3
    """The least factor of rollouts a second for which rollouts are added. Above 1 it pays for those
    that are cancelled when their run ends, and for costs that no curve shows. With 1.25, boosting
    made the mean latency of searches on one core 6 % longer."""

    def limit(
        self,
        runs: Sequence[RolloutCandidate],
        allocator: Allocator,
        load: EngineLoad,
        cost: RolloutCost | None,
    ) -> Limit:
        """Find M and the reason for it. cost: None where the device was not measured, which allows
        one rollout for each run. A load only lowers M: if M is the number of runs under
        `IDLE`, so it is under any load."""
        least = len(runs)
        growing = [run for run in runs if allocator.find_most(run) > 1]
        if load.has_waiting:
            return Limit(budget=least, reason="requests wait in an engine")
        if cost is None:
            return Limit(budget=least, reason="the speed of the engines is not known")
        if not growing:
            return Limit(budget=least, reason="no run has a use for more")
        own = sum(run.branching for run in runs)
        branching = fmean(run.branching for run in growing)
        path_tokens = fmean(run.path_tokens for run in growing)
        token_s = cost.predict_token_s(branching)
        alone_s, with_others_s = token_s(own, least), token_s(load.others + own, least)
        most = least + sum(allocator.find_most(run) - 1 for run in growing)

        # Factor of rollouts a second, by the rollouts in flight. Others must exceed the first one.
        gains = {least: self.least_gain}
        reason = "the runs have a use for no more"
        for budget in range(least + 1, most + 1):
            sequences = own + round((budget - least) * branching)
            everybody = load.others + sequences
            if (budget - least) * path_tokens > load.free_kv_tokens:
                reason = "the KV memory is full"
                break
            if everybody > load.max_sequences:
                reason = "the batch is full"
                break
            if load.others and token_s(everybody, budget) / with_others_s > 1.0 + self.margin:
                reason = "more would slow others down"
                break
            gains[budget] = budget / least * alone_s / token_s(sequences, budget)
        best = max(gains, key=gains.__getitem__)
        if best < max(gains):
            reason = "more would gain too little"
        return Limit(budget=best, reason=reason)
