"""What a user may know of boosting: how the rollouts are divided now."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class BoostStanding:
    """How the rollouts of a pair are divided now."""

    pair: str
    budget: int
    """M: rollouts of all its boosted runs together."""

    reason: str
    """Why there are no more."""

    runs: Mapping[str, int]
    """Rollouts that each run may have in flight, by its id."""
