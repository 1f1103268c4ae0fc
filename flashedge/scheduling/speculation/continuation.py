"""What comes next if a step is kept. The search knows it before the step is generated."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from flashedge.types import BLANK_LINE, Granularity


@dataclass(frozen=True, slots=True, kw_only=True)
class Continuation:
    """The children that a step will have if the search keeps it."""

    run: str
    level: int
    """Number of the step's level within the run. The beams of a level wait for each other, and
    for those of earlier levels: with rollouts in parallel, several levels generate at once."""
    seeds: tuple[int, ...]
    """Seeds of the children, in order. Empty when nothing can follow the step."""
    granularity: Granularity
    """Granularity of the children. Its `max_tokens` is an upper bound."""
    max_drafts: int
    """How many of the children may be drafted: M_i in the paper."""
    step_rule: str = BLANK_LINE
    """Name of the rule that ends the children's steps."""
    deterministic: bool = False
    """Whether the children's tokens must not depend on what else the engine computes."""

    @property
    def boundary(self) -> str | None:
        """Name of the rule that ends a child's segment. None if it goes on to the answer's end."""
        return None if self.granularity.to_end else self.step_rule

    def to_json(self) -> dict[str, Any]:
        """The form in which a request's parameters carry it."""
        names = ("run", "level", "seeds", "max_drafts", "step_rule", "deterministic")
        own = {name: getattr(self, name) for name in names}
        return {**own, "granularity": (self.granularity.max_tokens, self.granularity.to_end)}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Continuation:
        """The inverse of `to_json`."""
        max_tokens, to_end = data["granularity"]
        granularity = Granularity(max_tokens=max_tokens, to_end=to_end)
        return cls(**{**data, "seeds": tuple(data["seeds"]), "granularity": granularity})
