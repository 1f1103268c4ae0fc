"""How fast the history predictor learns and forgets, and how much it keeps."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class HistorySettings:
    """The defaults were chosen with `scripts/bench/lengths/prediction_error.py --sweep`."""

    half_life_runs: float = 400.0
    """Runs of a group after which a run counts half. A tenth counts after 3.3 times as many."""

    prompt_half_life_runs: float = 8.0
    """The same among the runs of one prompt."""

    parent_runs: float = 2.0
    """A group's prior, the fit of the larger group around it, counts as so many runs."""

    buckets_per_octave: int = 8
    """Groups by the prompt's tokens while these double."""

    neighbour_weights: tuple[float, ...] = (1.0, 0.6, 0.3)
    """How much a run counts in its own bucket, in those beside it, and in those beyond."""

    max_cells: int = 1_024
    """Groups that are kept. The ones that were used longest ago are dropped."""

    max_prompts: int = 4_096
    """Prompts that are remembered by themselves. As `max_cells`."""
