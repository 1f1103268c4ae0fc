"""Beam search with short steps first and long steps later."""

from __future__ import annotations

from dataclasses import dataclass

from flashedge.search.strategies.beam import BeamSearch


@dataclass(frozen=True, slots=True, kw_only=True)
class VaryingGranularity(BeamSearch):
    """Paths are pruned often at the start, where most of them go wrong, and rarely later.
    `max_step_tokens` is not used.

    Ref: arXiv 2509.00195 §3.1 and Fig. 11 (64 tokens for the first 3 steps, 2,048 thereafter).
    """

    short_steps: int = 3
    """Number of short steps at the start of a path."""
    short_step_tokens: int = 64
    """Longest short step."""
    long_step_tokens: int = 2048
    """Longest step after them."""

    @property
    def name(self) -> str:
        return "varying_granularity"

    def step_tokens(self, depth: int) -> int:
        return self.short_step_tokens if depth < self.short_steps else self.long_step_tokens
