"""Where a requested step ends. One rule for the simulator and for drafts in vLLM's scheduler."""

from __future__ import annotations

from collections.abc import Sequence, Set
from dataclasses import dataclass

from flashedge.search.steps import BoundaryRule
from flashedge.types import FinishReason


@dataclass(frozen=True, slots=True, kw_only=True)
class StepEnd:
    """Finds the last token of a step.

    A boundary counts even where it fills the context: the step is whole and can be scored. vLLM
    reports the same, whether the scheduler finds the boundary or a stop string does.
    """

    max_tokens: int
    room: int
    """Tokens that fit into the context behind the step's path."""
    boundary: BoundaryRule | None
    """Finds the step's boundary. None when the step may go on past it."""
    stop_ids: Set[int]
    """Tokens that end the answer."""

    def find_reason(self, previous: int | None, token: int, count: int) -> FinishReason | None:
        """Why `token`, the `count`-th of the step, is its last one; None if it is not.

        previous: the token before it in the same step, None for the first.
        """
        if self.boundary is not None and self.boundary.ends_step(previous, token):
            return FinishReason.BOUNDARY
        if token in self.stop_ids:
            return FinishReason.STOP
        if count == self.room:
            return FinishReason.LENGTH
        return FinishReason.STEP_LIMIT if count == self.max_tokens else None

    def cut(self, token_ids: Sequence[int]) -> tuple[int, FinishReason | None]:
        """How many of the tokens belong to the step, and why the last one ends it, if it does."""
        previous = None
        for count, token in enumerate(token_ids, 1):
            if (reason := self.find_reason(previous, token, count)) is not None:
                return count, reason
            previous = token
        return len(token_ids), None
