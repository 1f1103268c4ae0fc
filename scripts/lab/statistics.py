"""Figures of how well scores tell right from wrong, and correlations."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence

from flashedge.statistics import mean


def auc(right: Sequence[float], wrong: Sequence[float]) -> float:
    """Probability that a right item scores above a wrong one; a tie counts half. O(n log n)."""
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


def list_problem_aucs(
    scores: Sequence[Sequence[float]], labels: Sequence[Sequence[bool]]
) -> list[float]:
    """The AUC of each problem that has both right and wrong chains."""
    values = []
    for row, flags in zip(scores, labels, strict=True):
        right = [score for score, flag in zip(row, flags, strict=True) if flag]
        wrong = [score for score, flag in zip(row, flags, strict=True) if not flag]
        if right and wrong:
            values.append(auc(right, wrong))
    return values


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


def pearson(left: Sequence[float], right: Sequence[float]) -> float:
    """Linear correlation; NaN when one side is constant."""
    a, b = mean(left), mean(right)
    covariance = math.fsum((x - a) * (y - b) for x, y in zip(left, right, strict=True))
    spread = math.fsum((x - a) ** 2 for x in left) * math.fsum((y - b) ** 2 for y in right)
    return covariance / math.sqrt(spread) if spread > 0 else math.nan


def kendall(left: Sequence[float], right: Sequence[float]) -> float:
    """Rank correlation tau-b, which allows ties; NaN when one side is constant."""
    from scipy.stats import kendalltau  # takes a second to import

    return float(kendalltau(left, right).statistic)
