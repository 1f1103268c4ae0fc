"""Tokens and goodput a second, from samples of what the runs had by then. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

KEPT_S = 120.0
WINDOW_S = 3.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """counts: by run, (tokens, tokens of nodes that are active or complete) at `at_s`."""

    at_s: float
    counts: Mapping[str, tuple[int, int]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Rate:
    """tokens_per_s: all that runs generate; goodput_per_s: what the searches keep of it.

    A node counts as kept while it is active or complete, so goodput moves when a level is decided.
    """

    at_s: float
    tokens_per_s: float
    goodput_per_s: float


def sampled(samples: tuple[Sample, ...], new: Sample) -> tuple[Sample, ...]:
    """With `new`, without what is too old to show."""
    return (*(s for s in samples if new.at_s - s.at_s < KEPT_S), new)


def rates(samples: tuple[Sample, ...]) -> tuple[Rate, ...]:
    """The rate at each sample, over the window before it. A run counts from its second sample."""
    found: list[Rate] = []
    first = 0
    for now in samples[1:]:
        while now.at_s - samples[first].at_s > WINDOW_S and samples[first + 1] is not now:
            first += 1
        before = samples[first]
        took = now.at_s - before.at_s
        if took <= 0:
            continue
        made = kept = 0
        for run, (tokens, useful) in now.counts.items():
            had = before.counts.get(run)
            if had is not None:
                made += max(tokens - had[0], 0)
                kept += max(useful - had[1], 0)
        rate = Rate(at_s=now.at_s, tokens_per_s=made / took, goodput_per_s=kept / took)
        found.append(rate)
    return tuple(found)
