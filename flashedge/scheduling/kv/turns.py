"""Whose turn it is where both engines take all of the KV memory in turn. Pure: counts alone.

With several runs no engine is idle by itself: the turn passes at a common barrier, when nobody
waits for the engine that has it and somebody for the other. Until then the other's requests wait.

Ref: arXiv 2509.00195 §4.3 (offload of the inactive model's KV), which knows one run.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum


class Phase(StrEnum):
    GENERATE = "generate"
    VERIFY = "verify"

    @property
    def other(self) -> Phase:
        return Phase.VERIFY if self is Phase.GENERATE else Phase.GENERATE


@dataclass(frozen=True, slots=True, kw_only=True)
class Phases:
    """generating, verifying: requests that are open, of all runs; turn: which engine's KV is in
    the device's memory."""

    generating: int = 0
    verifying: int = 0
    turn: Phase = Phase.GENERATE

    def waiting_for(self, phase: Phase) -> int:
        return self.generating if phase is Phase.GENERATE else self.verifying

    def opened(self, phase: Phase) -> Phases:
        return self._with(phase, 1)

    def closed(self, phase: Phase) -> Phases:
        """Raises ValueError when none of the phase is open."""
        if not self.waiting_for(phase):
            raise ValueError(f"no request of phase {phase} is open")
        return self._with(phase, -1)

    @property
    def due(self) -> Phase:
        """Whose turn it should be now."""
        if self.waiting_for(self.turn) == 0 and self.waiting_for(self.turn.other) > 0:
            return self.turn.other
        return self.turn

    def passed(self) -> Phases:
        """The turn is where it is due."""
        return replace(self, turn=self.due)

    def _with(self, phase: Phase, more: int) -> Phases:
        if phase is Phase.GENERATE:
            return replace(self, generating=self.generating + more)
        return replace(self, verifying=self.verifying + more)
