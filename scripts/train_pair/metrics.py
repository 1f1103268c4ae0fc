"""The product's figures, votes and path scores under one name for these scripts."""

from __future__ import annotations

from collections.abc import Sequence

from flashedge.search.answers import votes
from flashedge.search.scoring import aggregate
from flashedge.statistics import auc, calibration, interval, mean, within_problem_auc

__all__ = ["aggregate", "auc", "calibration", "interval", "mean", "vote", "within_problem_auc"]


def vote(answers: Sequence[str | None], weights: Sequence[float]) -> str | None:
    """The answer with the greatest summed weight; of equals the more frequent, then the earlier."""
    counted = votes(zip(answers, weights, strict=True))
    return counted[0].answer if counted else None
