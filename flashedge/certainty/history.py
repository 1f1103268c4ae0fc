"""What a policy sees: the checkpoints of a run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

ENTROPY, REWARD, CONSISTENCY = "entropy", "reward", "consistency"
TV = "tv"  # 1 when the rule of `measures.has_settled` holds, else 0
LEAD = "lead"  # see `certainty.lead`
PROGRAM = "program"  # the certainty that a user's own program reports
MEASURES = (ENTROPY, REWARD, CONSISTENCY, TV, LEAD, PROGRAM)


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoint:
    """The measures of a run between two levels, rollouts or probes. Ref: arXiv 2412.20993 App.
    D.1."""

    progress: int
    """Finished paths, rollouts (MCTS) or probes (chain of thought) so far."""
    tokens: int
    answers: int
    """Paths (or probes) that have an answer."""
    measures: Mapping[str, float]
    """Measure name -> value in [0, 1]. A measure that is not defined here is missing."""
    answer: str | None = None

    @property
    def certainty(self) -> float | None:
        """The measure to display: the one over answers, if there is one."""
        for name in (CONSISTENCY, ENTROPY, PROGRAM):
            if name in self.measures:
                return self.measures[name]
        return None


History = tuple[Checkpoint, ...]
