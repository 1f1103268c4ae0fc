"""Verifier-guided beam search over steps, until n paths are complete, and two variants of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from flashedge.search.level import LevelState, Shares, Stepwise, apportion, split_evenly
from flashedge.types import NodeId


@dataclass(frozen=True, slots=True, kw_only=True)
class BeamSearch(Stepwise):
    """Keep the best width / branching paths, with equal shares of the width. Ref:
    search-and-learn's `beam_search`; arXiv 2509.00195 §3.1."""

    name: ClassVar[str] = "beam"

    def keep(self, state: LevelState, paths: Sequence[NodeId], width: int) -> Shares:
        num_kept = -(-width // self.branching)
        return split_evenly(paths[:num_kept], width)


@dataclass(frozen=True, slots=True, kw_only=True)
class DynamicBranching(Stepwise):
    """Keep as many paths as beam search. Each gets one child, and the rest of the width is split
    in proportion to the scores.

    Ref: arXiv 2509.00195 §3.1 and Fig. 11 ("each beam branches proportionally to its verifier
    score"). Departure: shares are rounded so that the width is met exactly.
    """

    name: ClassVar[str] = "dynamic_branching"

    def keep(self, state: LevelState, paths: Sequence[NodeId], width: int) -> Shares:
        kept = paths[: -(-width // self.branching)]
        weights = [max(0.0, self.path_score(state, node)) for node in kept]
        return tuple(zip(kept, apportion(weights, width, least=1), strict=True))

    def max_children(self, state: LevelState) -> int:
        """A path with a high score may get nearly all of the width."""
        return self.n - len(state.complete) - state.num_ended


@dataclass(frozen=True, slots=True, kw_only=True)
class VaryingGranularity(BeamSearch):
    """Beam search with short steps first and long steps later: paths are pruned often at the start,
    where most of them go wrong. `max_step_tokens` is not used.

    Ref: arXiv 2509.00195 §3.1 and Fig. 11 (64 tokens for the first 3 steps, 2,048 thereafter).
    """

    name: ClassVar[str] = "varying_granularity"
    short_steps: int = 3
    short_step_tokens: int = 64
    long_step_tokens: int = 2048

    def step_tokens(self, depth: int) -> int:
        return self.short_step_tokens if depth < self.short_steps else self.long_step_tokens
