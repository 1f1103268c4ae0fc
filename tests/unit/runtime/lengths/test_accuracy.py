"""Errors of predictions: worked by hand, and of predictors that are right or wrong on purpose."""

from __future__ import annotations

import json
from collections.abc import Sequence
from math import isnan

import numpy as np
import pytest

from flashedge.runtime.lengths.accuracy import find_median, measure
from flashedge.scheduling.lengths.base import LengthDistribution
from flashedge.scheduling.lengths.families.log_t import LogT
from flashedge.scheduling.lengths.families.point import Point
from flashedge.scheduling.lengths.observed import OutputLengths
from flashedge.scheduling.lengths.request import FinishedOutputs, LengthRequest

RANDOM = np.random.default_rng(0)
MEDIANS = [100 + 10 * i for i in range(40)]


def make(median: float, count: int = 16) -> FinishedOutputs:
    drawn = np.exp(np.log(median) + 0.2 * RANDOM.standard_t(3.5, count))
    tokens = [max(1, round(float(t))) for t in drawn]
    request = LengthRequest(pair="p", text=str(median), max_tokens=4096)
    return FinishedOutputs(request=request, lengths=OutputLengths.from_outputs(tokens))


class Said:
    """A LengthPredictor that says what a table says."""

    def __init__(self, table: dict[str, LengthDistribution]) -> None:
        self._table = table

    def predict(self, requests: Sequence[LengthRequest]) -> list[LengthDistribution | None]:
        return [self._table.get(one.text) for one in requests]

    def learn(self, finished: FinishedOutputs) -> None:
        raise AssertionError("measuring teaches nothing")

    def explain(self, request: LengthRequest) -> str:
        return ""


RUNS = [make(median) for median in MEDIANS]
TRUE = Said({str(m): LogT(float(np.log(m)), 0.2) for m in MEDIANS})


def test_the_truth_is_calibrated_and_in_order() -> None:
    found = measure(TRUE, RUNS)
    assert (found.prompts, found.predicted) == (40, 40)
    assert found.median_error < 0.1
    assert found.median_error_95[0] < found.median_error < found.median_error_95[1]
    assert found.tau > 0.8
    assert found.coverage == pytest.approx((0.5, 0.8, 0.9), abs=0.05)


def test_each_figure_tells_what_is_wrong() -> None:
    true = measure(TRUE, RUNS)
    doubled = measure(Said({str(m): LogT(float(np.log(2 * m)), 0.2) for m in MEDIANS}), RUNS)
    wide = measure(Said({str(m): LogT(float(np.log(m)), 0.6) for m in MEDIANS}), RUNS)

    upside = measure(Said({str(m): Point(1000.0 - m) for m in MEDIANS}), RUNS)
    assert doubled.median_error == pytest.approx(1.0, abs=0.1)
    assert doubled.tau == true.tau
    assert doubled.log_score > wide.log_score > true.log_score
    assert doubled.pinball > wide.pinball > true.pinball
    assert wide.coverage[0] > 0.85
    assert upside.tau < -0.8
    assert isnan(upside.log_score)


def test_a_worked_example() -> None:
    lengths = OutputLengths.from_outputs([90, 110])
    run = FinishedOutputs(request=LengthRequest(pair="p", text="a", max_tokens=9), lengths=lengths)
    found = measure(Said({"a": Point(100.0)}), [run])
    assert found.median_error == 0
    # |error| is 10 of 100 tokens, and the pinball loss of a point averages half of it
    assert found.pinball == pytest.approx(0.05)
    assert found.coverage == (0.0, 0.0, 0.0)
    assert json.dumps(found.to_json())
    assert found.to_json()["tau"] is None


def test_what_is_not_predicted_is_counted_and_left_out() -> None:
    some = Said({"100": Point(100.0)})
    found = measure(some, RUNS)
    assert (found.prompts, found.predicted) == (40, 1)
    nothing = measure(Said({}), RUNS)
    assert isnan(nothing.median_error)
    assert isnan(nothing.coverage[0])


def test_a_median_is_unknown_where_half_of_the_outputs_were_cut() -> None:
    assert find_median(OutputLengths.from_outputs([5, 7, 9], [False, False, True])) == 6
    assert find_median(OutputLengths.from_outputs([5, 9], [False, True])) is None
