"""Verifier-guided beam search over steps, until n paths are complete."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from flashedge.search.level_state import LevelState, Shares
from flashedge.search.stepwise import Stepwise, split_evenly
from flashedge.types import NodeId


@dataclass(frozen=True, slots=True, kw_only=True)
class BeamSearch(Stepwise):
    """Keep the best width / branching paths, with equal shares of the width.

    Ref: search-and-learn's `beam_search`; arXiv 2509.00195 §3.1.
    """

    @property
    def name(self) -> str:
        return "beam"

    def keep(self, state: LevelState, paths: Sequence[NodeId], width: int) -> Shares:
        num_kept = -(-width // self.branching)
        return split_evenly(paths[:num_kept], width)
