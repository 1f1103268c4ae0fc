"""Splits a whole number in proportion to weights."""

from __future__ import annotations

import math
from collections.abc import Sequence


def apportion(weights: Sequence[float], total: int, *, least: int = 0) -> tuple[int, ...]:
    """weights: (k,) finite, >= 0 -> (k,) integers >= least with sum `total`.

    Each gets `least`; the rest is split in proportion, by largest remainder, ties to the earlier.
    If all weights are 0, it is split evenly. Raises ValueError if k is 0 or k * least > total.
    """
    rest = total - least * len(weights)
    if rest < 0 or not weights:
        raise ValueError(f"{total} can't be split {len(weights)} ways with at least {least} each")
    total_weight = math.fsum(weights)
    exact = [rest * w / total_weight if total_weight > 0 else rest / len(weights) for w in weights]
    shares = [math.floor(e) for e in exact]
    order = sorted(range(len(weights)), key=lambda i: (shares[i] - exact[i], i))
    for i in order[: rest - sum(shares)]:
        shares[i] += 1
    return tuple(least + s for s in shares)


def softmax(values: Sequence[float], temperature: float) -> tuple[float, ...]:
    """values: (k,) -> (k,) exp(v / T), divided by their sum. temperature > 0."""
    top = max(values)
    powers = [math.exp((v - top) / temperature) for v in values]
    powers_sum = math.fsum(powers)
    return tuple(p / powers_sum for p in powers)
