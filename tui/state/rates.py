"""Tokens and goodput per second, from samples of each run's token counts. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

KEPT_S = 120.0
WINDOW_S = 3.0


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenSample:
    """Token counts of the runs at one moment."""

    at_s: float
    counts: Mapping[str, tuple[int, int]]
    """By run: all tokens, and tokens of nodes that are active or complete."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rate:
    """Tokens per second up to `at_s`."""

    at_s: float
    tokens_per_s: float
    """Everything that the runs generate."""

    goodput_per_s: float
    """What the searches keep of it. It moves when a level is decided."""


def add_sample(samples: tuple[TokenSample, ...], new: TokenSample) -> tuple[TokenSample, ...]:
    """The samples with `new`, without those that are too old to show."""
    return (*(s for s in samples if new.at_s - s.at_s < KEPT_S), new)


def compute_rates(samples: tuple[TokenSample, ...], run: str | None = None) -> tuple[Rate, ...]:
    """The rate at each sample, over the window before it; of one run, or of all together.

    A run counts from its first sample within the window. A sample gives no rate while it has runs
    of which none was sampled before.
    """
    return tuple(
        rate
        for index in range(1, len(samples))
        if (rate := _compute_rate(samples, index, run)) is not None
    )


def _compute_rate(samples: tuple[TokenSample, ...], index: int, run: str | None) -> Rate | None:
    now = samples[index]
    first = index - 1
    while first > 0 and now.at_s - samples[first - 1].at_s <= WINDOW_S:
        first -= 1
    elapsed_s = now.at_s - samples[first].at_s
    if elapsed_s <= 0:
        return None
    counts = {name: c for name, c in now.counts.items() if run is None or name == run}
    before = samples[first:index]
    seen = [name for name in counts if any(name in sample.counts for sample in before)]
    if (counts or run is not None) and not seen:
        return None
    generated = kept = 0
    for name in seen:
        earlier = next(sample.counts[name] for sample in before if name in sample.counts)
        generated += max(counts[name][0] - earlier[0], 0)
        kept += max(counts[name][1] - earlier[1], 0)
    return Rate(at_s=now.at_s, tokens_per_s=generated / elapsed_s, goodput_per_s=kept / elapsed_s)
