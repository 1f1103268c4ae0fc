"""Candidates and costs for tests of boosting."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from flashedge.scheduling.rollouts.allocation import RolloutCandidate
from flashedge.scheduling.rollouts.limiter import EngineLoad, RolloutCost


def make_candidate(key: str, **fields: Any) -> RolloutCandidate:
    usual: dict[str, Any] = {"arrived_s": 0.0, "branching": 4, "most": 8, "observed": 1}
    return RolloutCandidate(key=key, **{**usual, **fields})


@dataclass(frozen=True)
class LinearCurve:
    """A step takes `fixed_s`, and `sequence_s` for each sequence."""

    fixed_s: float = 0.01
    sequence_s: float = 0.0

    def decode_at(self, context: float) -> Callable[[int], float]:
        return lambda batch: self.fixed_s + batch * self.sequence_s

    def prefill_at(self, context: float, new: float) -> Callable[[int], float]:
        return self.decode_at(context)


def make_cost(sequence_s: float, pass_s: float = 0.0) -> RolloutCost:
    generator, verifier = LinearCurve(sequence_s=sequence_s), LinearCurve(fixed_s=pass_s)
    return RolloutCost(generator=generator, verifier=verifier, shares_device=pass_s > 0)


def make_load(**fields: Any) -> EngineLoad:
    usual: dict[str, Any] = {"has_waiting": False, "others": 0, "max_sequences": 256}
    return EngineLoad(**{**usual, "free_kv_tokens": 1e9, **fields})
