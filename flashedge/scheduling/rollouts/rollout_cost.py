"""What one more rollout costs everybody: the time between two tokens, by measured curves.

A rollout adds its children to every decode step, and a pass of the verifier to every level. Where
both engines compute on one device, that pass holds up the decode steps. Otherwise both work at the
same time, and the slower one sets the pace.
"""

from __future__ import annotations

from dataclasses import dataclass

from flashedge.scheduling.costs.curves import CostCurve

LEVEL_TOKENS = 64
"""Decode steps of a level that was never measured: the longest of a few children."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RolloutCost:
    """The speed of both engines under rollouts of this kind."""

    generator: CostCurve
    verifier: CostCurve

    shares_device: bool
    """Whether a pass of the verifier holds up the generator."""

    context: float = 256.0
    """Tokens of a typical path."""

    level_tokens: float = LEVEL_TOKENS
    """Decode steps of a level."""

    def count_token_s(self, others: int, rollouts: int, branching: int) -> float:
        """Seconds from one token of a sequence to its next one, verification included.

        others: sequences beside the rollouts; branching: sequences of one rollout.
        """
        batch = max(1, others + rollouts * branching)
        token_s = self.generator.decode_at(self.context)(batch)
        pass_s = self.verifier.prefill_at(self.context, self.level_tokens / 2)(branching)
        verifying_s = rollouts * pass_s / self.level_tokens
        return token_s + verifying_s if self.shares_device else max(token_s, verifying_s)
