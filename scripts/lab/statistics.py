"""Means with bootstrap 95 % intervals over problems, the AUC of scores, rank correlation."""

import math
import random
from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import TypeVar

T = TypeVar("T")


def mean(values: Sequence[float]) -> float:
    """The mean; NaN without values."""
    return sum(values) / len(values) if values else math.nan


def interval(values: Sequence[float], seed: int = 0, draws: int = 1000) -> tuple[float, float]:
    """The bootstrap 95 % interval of the mean, with one value for each problem."""
    return bootstrap(values, mean, seed=seed, draws=draws)


def bootstrap(
    problems: Sequence[T],
    statistic: Callable[[Sequence[T]], float],
    seed: int = 0,
    draws: int = 200,
) -> tuple[float, float]:
    """The bootstrap 95 % interval of `statistic` over the problems; NaN without problems.

    Draws for which the statistic is NaN are left out.
    """
    if not problems:
        return math.nan, math.nan
    rng = random.Random(seed)
    found = (statistic(rng.choices(problems, k=len(problems))) for _ in range(draws))
    kept = sorted(value for value in found if not math.isnan(value))
    if not kept:
        return math.nan, math.nan
    return kept[int(0.025 * len(kept))], kept[max(0, int(0.975 * len(kept)) - 1)]


def auc(right: Sequence[float], wrong: Sequence[float]) -> float:
    """Probability that a right item scores above a wrong one; a tie counts half."""
    if not right or not wrong:
        return math.nan
    from scipy.stats import rankdata  # takes a second to import, like all of scipy.stats

    ranks = rankdata([*right, *wrong])[: len(right)].sum()
    wins = ranks - len(right) * (len(right) + 1) / 2
    return float(wins / (len(right) * len(wrong)))


def calibration(
    scores: Sequence[float], labels: Sequence[bool]
) -> tuple[float, list[dict[str, float]]]:
    """Expected calibration error (NaN without scores) and the reliability table."""
    if not scores:
        return math.nan, []
    groups: dict[int, list[tuple[float, bool]]] = defaultdict(list)
    for score, label in zip(scores, labels, strict=True):
        groups[min(9, int(score * 10))].append((score, label))
    rows, error = [], 0.0
    for index in sorted(groups):
        group = groups[index]
        predicted = mean([score for score, _ in group])
        true = mean([float(flag) for _, flag in group])
        error += abs(predicted - true) * len(group) / len(scores)
        rows.append({"said": round(predicted, 3), "true": round(true, 3), "count": len(group)})
    return error, rows


def kendall(left: Sequence[float], right: Sequence[float]) -> float:
    """Rank correlation tau-b, which allows ties; NaN when one side is constant or empty."""
    if len(left) < 2:
        return math.nan  # scipy would warn
    from scipy.stats import kendalltau

    return float(kendalltau(left, right).statistic)
