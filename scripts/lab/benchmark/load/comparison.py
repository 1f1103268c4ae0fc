"""Compares policies on the same loads: ratios paired by seed, with 95 % bootstrap intervals."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from scripts.lab.statistics import interval, mean


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """A mean over seeds."""

    value: float
    low: float
    """Lower end of the 95 % bootstrap interval over seeds."""
    high: float
    seeds: int

    def to_json(self) -> dict[str, float]:
        rounded = (float(f"{one:.4g}") for one in (self.value, self.low, self.high))
        return {**dict(zip(("value", "low", "high"), rounded, strict=True)), "seeds": self.seeds}

    def __str__(self) -> str:
        return f"{self.value:.2f} ({self.low:.2f}-{self.high:.2f})"


def estimate_mean(by_seed: Mapping[int, float]) -> Estimate:
    return _estimate([by_seed[seed] for seed in sorted(by_seed)])


def compare_paired(ours: Mapping[int, float], theirs: Mapping[int, float]) -> Estimate:
    """The mean over seeds of theirs / ours: how many times lower ours is.

    Only seeds that both have, with a positive value of ours, count.
    """
    both = [seed for seed in sorted(ours) if seed in theirs and ours[seed] > 0]
    return _estimate([theirs[seed] / ours[seed] for seed in both])


def find_best(by_policy: Mapping[str, Mapping[int, float]], names: Sequence[str]) -> str:
    """The policy with the least mean among `names`; the first of equal ones.

    It is chosen on the same seeds that it is then compared on, which favours it.
    """
    return min(names, key=lambda name: mean(list(by_policy[name].values())))


def _estimate(values: Sequence[float]) -> Estimate:
    low, high = interval(values)
    return Estimate(value=mean(values), low=low, high=high, seeds=len(values))
