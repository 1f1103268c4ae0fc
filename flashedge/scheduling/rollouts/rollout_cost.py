"""What one more rollout costs everybody: the time between two tokens, by measured curves.

A rollout adds its children to every decode step, and a pass of the verifier to every level. Where
both engines compute on one device, that pass holds up the decode steps. Otherwise both work at the
same time, and the slower one sets the pace. The same holds for the daemon, which follows every
token: it holds up engines with which it shares processors, and may be the slowest of the three.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from flashedge.scheduling.costs import CostCurve

LEVEL_TOKENS = 64
"""Decode steps of a level that was never measured: the longest of a few children."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RolloutCost:
    """The speed of both engines under rollouts of this kind."""

    generator: CostCurve
    verifier: CostCurve

    shares_device: bool
    """Whether a pass of the verifier holds up the generator."""

    shares_daemon: bool = False
    """Whether what the daemon computes holds up the engines."""

    daemon_s: float = 0.0
    """Seconds that the daemon computes for a token of one sequence."""

    context: float = 256.0
    """Tokens of a typical path."""

    level_tokens: float = LEVEL_TOKENS
    """Decode steps of a level."""

    def predict_token_s(self, branching: float) -> Callable[[int, int], float]:
        """Seconds from one token of a sequence to its next one, with verification and the daemon,
        by the sequences of the generator and the rollouts among them.

        branching: sequences of one rollout.
        """
        decode_s = self.generator.decode_at(self.context)
        pass_s = self.verifier.prefill_at(self.context, self.level_tokens / 2)(round(branching))

        def predict(sequences: int, rollouts: int) -> float:
            batch = max(1, sequences)
            verifying_s = rollouts * pass_s / self.level_tokens
            engines_s = _join(decode_s(batch), verifying_s, self.shares_device)
            return _join(engines_s, batch * self.daemon_s, self.shares_daemon)

        return predict


def _join(one_s: float, other_s: float, shared: bool) -> float:
    """Seconds of two that follow each other, on shared processors, or of the slower one."""
    return one_s + other_s if shared else max(one_s, other_s)
