"""What the studies of scheduling share: their folder, and ratios paired by seed with intervals."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from scripts.lab.statistics import interval, mean

OUTPUT = Path("runs/scheduling")


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """A mean over seeds with its 95 % bootstrap interval."""

    value: float
    low: float
    high: float
    seeds: int

    def to_json(self) -> dict[str, float]:
        rounded = (float(f"{one:.4g}") for one in (self.value, self.low, self.high))
        return {**dict(zip(("value", "low", "high"), rounded, strict=True)), "seeds": self.seeds}


def estimate_mean(by_seed: Mapping[int, float]) -> Estimate:
    return _estimate([by_seed[seed] for seed in sorted(by_seed)])


def compare_paired(ours: Mapping[int, float], theirs: Mapping[int, float]) -> Estimate:
    """The mean over seeds of theirs / ours: how many times lower ours is.

    Only seeds that both have, with a positive value of ours, count.
    """
    both = [seed for seed in sorted(ours) if seed in theirs and ours[seed] > 0]
    return _estimate([theirs[seed] / ours[seed] for seed in both])


def _estimate(values: Sequence[float]) -> Estimate:
    low, high = interval(values)
    return Estimate(value=mean(values), low=low, high=high, seeds=len(values))
