"""The synthetic workload of the length predictors: equal seeds, real lengths, prompts that tell."""

from math import log
from statistics import fmean
from typing import Any

import pytest

from scripts.bench.lengths.workload import LengthWorkload
from scripts.bench.pearson import pearson
from scripts.lab.benchmark.lengths import load_trace
from scripts.train_pair.problems import TRAINING, make_problem


@pytest.fixture(scope="module")
def workload() -> LengthWorkload:
    return LengthWorkload(lambda turns: tuple(turns[0].content.encode()))


def test_the_same_index_gives_the_same_request(workload: LengthWorkload) -> None:
    assert workload.make(7) == workload.make(7)
    again = workload.make(7, run=1)
    assert again.request == workload.make(7).request
    assert again.lengths != workload.make(7).lengths


def test_problems_with_more_steps_have_longer_outputs(workload: LengthWorkload) -> None:
    runs = workload.make_many(range(200))
    steps = [make_problem(i, TRAINING).num_steps for i in range(200)]
    means = [fmean(map(log, run.lengths.tokens)) for run in runs]
    assert 0.7 < pearson(steps, means) < 0.95  # the prompt does not tell everything
    assert all(run.request.text.startswith("user: ") for run in runs)


def test_the_lengths_are_about_those_of_the_trace(workload: LengthWorkload) -> None:
    drawn = [t for run in workload.make_many(range(300)) for t in run.lengths.tokens]
    observed = [sum(s) for row in load_trace("math").rows for s in row.step_tokens]
    assert fmean(drawn) == pytest.approx(fmean(observed), rel=0.12)


def test_a_limit_cuts_outputs_and_a_drift_stretches_them(workload: LengthWorkload) -> None:
    changes: list[dict[str, Any]] = [{"max_tokens": 300}, {"stretch": 2.0}]
    cut, long = (LengthWorkload(lambda turns: (1,), **one).make(3).lengths for one in changes)
    whole = workload.make(3).lengths
    assert cut.tokens == tuple(min(t, 300) for t in whole.tokens)
    assert cut.is_censored == tuple(t > 300 for t in whole.tokens)
    assert [2 * t for t in whole.tokens] == list(long.tokens)
