"""What a policy is told: one checkpoint for each checkpoint that a run came to."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

ENTROPY, REWARD, CONSISTENCY = "entropy", "reward", "consistency"
TV = "tv"  # 1 when the rule of `tv_stopping` holds, else 0
PROGRAM = "program"  # what a user's own program says of itself
MEASURES = (ENTROPY, REWARD, CONSISTENCY, TV, PROGRAM)


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoint:
    """How sure a run was at one checkpoint.

    progress: what the algorithm is scaled by, so far: finished paths, rollouts (MCTS) or probes (CoT);
    tokens: committed tokens; answers: paths (or probes) with an answer; measures: name -> value in
    [0, 1], those that could be taken; answer: what the run would say if it ended here. Never
    mutated.
    Ref: arXiv 2412.20993 App. D.1 (certainindex and progress of a reasoning program).
    """

    progress: int
    tokens: int
    answers: int
    measures: Mapping[str, float]
    answer: str | None = None

    @property
    def certainty(self) -> float | None:
        """The measure to show: that of the answers where there is one, else None."""
        for name in (CONSISTENCY, ENTROPY, PROGRAM):
            if name in self.measures:
                return self.measures[name]
        return None


History = tuple[Checkpoint, ...]
