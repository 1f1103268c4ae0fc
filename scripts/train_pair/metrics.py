"""Figures with their 95 % intervals; the problem is always the unit that is resampled."""

from __future__ import annotations

import math
import random
from collections import defaultdict
from collections.abc import Sequence


def mean(values: Sequence[float]) -> float:
    """The mean, nan where there is nothing."""
    return sum(values) / len(values) if values else math.nan


def interval(values: Sequence[float], seed: int = 0, draws: int = 1000) -> tuple[float, float]:
    """Bootstrap 95 % interval of the mean of one value a problem."""
    if not values:
        return math.nan, math.nan
    rng = random.Random(seed)
    means = sorted(mean(rng.choices(values, k=len(values))) for _ in range(draws))
    return means[int(0.025 * draws)], means[int(0.975 * draws) - 1]


def auc(right: Sequence[float], wrong: Sequence[float]) -> float:
    """Probability that a right one scores above a wrong one, ties counting half. O(n log n)."""
    if not right or not wrong:
        return math.nan
    ranked = sorted([(score, 1) for score in right] + [(score, 0) for score in wrong])
    wins, below, index = 0.0, 0, 0
    while index < len(ranked):
        end = index
        while end < len(ranked) and ranked[end][0] == ranked[index][0]:
            end += 1
        rights = sum(flag for _, flag in ranked[index:end])
        wrongs = end - index - rights
        wins += rights * (below + wrongs / 2)
        below, index = below + wrongs, end
    return wins / (len(right) * len(wrong))


def within_problem_auc(
    scores: Sequence[Sequence[float]], labels: Sequence[Sequence[bool]]
) -> list[float]:
    """One AUC for every problem that has right and wrong chains."""
    values = []
    for row, flags in zip(scores, labels, strict=True):
        right = [score for score, flag in zip(row, flags, strict=True) if flag]
        wrong = [score for score, flag in zip(row, flags, strict=True) if not flag]
        if right and wrong:
            values.append(auc(right, wrong))
    return values


def calibration(
    scores: Sequence[float], labels: Sequence[bool], bins: int = 10
) -> tuple[float, list[dict[str, float]]]:
    """Expected calibration error, and the reliability table behind it."""
    groups: dict[int, list[tuple[float, bool]]] = defaultdict(list)
    for score, label in zip(scores, labels, strict=True):
        groups[min(bins - 1, int(score * bins))].append((score, label))
    rows, error = [], 0.0
    for index in sorted(groups):
        said, true = (
            mean([s for s, _ in groups[index]]),
            mean([float(flag) for _, flag in groups[index]]),
        )
        error += abs(said - true) * len(groups[index]) / len(scores)
        rows.append({"said": round(said, 3), "true": round(true, 3), "count": len(groups[index])})
    return error, rows


def vote(answers: Sequence[str | None], weights: Sequence[float]) -> str | None:
    """The answer with the greatest summed weight; the earliest of equals."""
    totals: dict[str, float] = {}
    for answer, weight in zip(answers, weights, strict=True):
        if answer is not None:
            totals[answer] = totals.get(answer, 0.0) + weight
    return max(totals, key=lambda answer: totals[answer]) if totals else None


def aggregate(scores: Sequence[float], how: str) -> float:
    """One score for a chain: `last`, `min` or `prod` of its step scores."""
    if not scores:
        return 0.0
    return scores[-1] if how == "last" else min(scores) if how == "min" else math.prod(scores)
