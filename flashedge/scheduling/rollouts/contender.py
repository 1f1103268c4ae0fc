"""A tree search that may get more rollouts in flight."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Contender:
    """What is known of one MCTS run."""

    key: str
    arrived_s: float

    branching: int
    """Sequences that one rollout generates at once."""

    most: int
    """Rollouts that it has a use for: those that it has left, at most what one run may have. At
    least 1."""

    observed: int = 0
    """Rollouts that have ended."""

    nearness: float | None = None
    """Its best reward over the reward at which it ends early. None where no reward ends it, or
    nothing is scored yet."""

    path_tokens: int = 0
    """Tokens of prompt and path whose KV one rollout holds at its longest."""
