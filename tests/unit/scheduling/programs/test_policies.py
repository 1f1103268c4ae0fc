"""Scores: the paper's formulas, and what moves them."""

from __future__ import annotations

import numpy as np
import pytest

from flashedge.scheduling.programs.policies import (
    MEASURED_DECAY,
    Decay,
    compute_risk_weight,
    compute_scores,
)

DECAY = Decay(factor=0.5, interval_s=10)


@pytest.mark.parametrize(
    ("waiting", "weight"), [(0, 0.1), (1, 0.1), (2, 0.125), (4, 0.25), (8, 0.5), (900, 0.5)]
)
def test_the_risk_weight_follows_the_queue(waiting: int, weight: float) -> None:
    assert compute_risk_weight(waiting, 16) == weight


def test_scores_are_the_inflated_expectation_less_the_decay() -> None:
    expected, risk = np.array([100.0, 200.0, 300.0, 50.0]), np.array([400.0, 300.0, 310.0, 60.0])
    waited_s = np.array([0.0, 9.99, 10.0, 25.0])
    scores = compute_scores(expected, risk, waited_s, weight=0.2, decay=DECAY)
    assert scores.tolist() == pytest.approx([180.0, 260.0, 362.0 / 2, 62.0 / 4])


def test_a_clock_that_is_behind_does_not_raise_a_score() -> None:
    one, late = np.array([100.0]), np.array([-70.0])
    assert compute_scores(one, one, late, weight=0.1, decay=DECAY).tolist() == pytest.approx([110])


def test_every_request_goes_first_in_the_end() -> None:
    long, short = np.array([4096.0 * 1.5]), np.array([1.0])
    waits = np.arange(0, 2000, MEASURED_DECAY.interval_s)
    scores = compute_scores(
        np.repeat(long, waits.size), long, waits, weight=0.5, decay=MEASURED_DECAY
    )
    assert (np.diff(scores) < 0).all()
    assert scores[-1] < short[0]
