"""What a search leaves when it is over."""

from __future__ import annotations

from dataclasses import dataclass

from flashedge.certainty.history import History
from flashedge.search.base import Finish
from flashedge.search.tree import Tree

DEADLINE = "deadline"
"""The `cut_by` of a run that its deadline ended."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    tree: Tree
    finish: Finish
    history: History

    cut_by: str | None
    """What ended the search early: see `Finish`, or deadline. None if it reached its own end."""

    @property
    def certainty(self) -> float | None:
        """Certainty at the last checkpoint."""
        return self.history[-1].certainty if self.history else None
