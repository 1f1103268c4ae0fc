"""Self-consistency: generate n whole answers and take the most frequent. No verifier."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from flashedge.search.strategies.best_of_n import BestOfN


@dataclass(frozen=True, slots=True, kw_only=True)
class SelfConsistency(BestOfN):
    """Without scores, every selection is a majority vote. Ties go to the earlier answer.

    Ref: arXiv 2412.20993 App. A; groups instead of all at once: App. G.4.
    """

    verifies: ClassVar[bool] = False

    selection: str = "majority"

    @property
    def name(self) -> str:
        return "self_consistency"
