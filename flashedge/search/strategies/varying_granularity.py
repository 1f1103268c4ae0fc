"""Beam search whose first steps are short: early choices are made often, later ones seldom."""

from __future__ import annotations

from dataclasses import dataclass

from flashedge.search.strategies.beam import BeamSearch


@dataclass(frozen=True, slots=True, kw_only=True)
class VaryingGranularity(BeamSearch):
    """The first `short_steps` steps have at most `short_step_tokens`, the others at most
    `long_step_tokens` (`max_step_tokens` is not used).

    Ref: arXiv 2509.00195 §3.1 and Fig. 11 (64 tokens for the first 3 steps, 2,048 thereafter).
    """

    short_steps: int = 3
    short_step_tokens: int = 64
    long_step_tokens: int = 2048

    @property
    def name(self) -> str:
        return "varying_granularity"

    def step_tokens(self, depth: int) -> int:
        return self.short_step_tokens if depth < self.short_steps else self.long_step_tokens
