"""The workloads of the length predictors: equal seeds, real lengths, prompts that tell."""

import gzip
import json
from math import log
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
import pytest

from scripts.bench.lengths.workload import (
    LengthWorkload,
    SampledWorkload,
    Samples,
    read_samples,
    spread_samples,
)
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


def test_real_samples_make_two_runs_of_their_prompt(tmp_path: Path) -> None:
    row = {"problem": "1+1?", "texts": ["", ""], "lens": [10, 20, 30, 512]}
    path = tmp_path / "samples.jsonl.gz"
    path.write_bytes(gzip.compress(json.dumps(row).encode()))
    samples = read_samples(path, lambda turns: tuple(turns[0].content.encode()))
    first, second = (SampledWorkload(samples).make_many([0], run)[0] for run in (0, 1))
    assert first.request == second.request
    assert first.request.num_prompt_tokens == 4
    assert (first.lengths.tokens, second.lengths.tokens) == ((10, 30), (20, 512))
    assert second.lengths.is_censored == (False, True), "the longest of all was cut"
    (doubled,) = SampledWorkload(samples, 2.0).make_many([0], 1)
    assert (doubled.lengths.tokens, doubled.request.max_tokens) == ((40, 1024), 1024)


def test_a_spread_is_stretched_and_halves_do_not_tell_of_each_other() -> None:
    draw = np.random.default_rng(0)
    logs = np.log(300) + 0.1 * draw.standard_normal((400, 8))
    samples = [Samples("", (), tuple(np.rint(np.exp(one)).astype(int).tolist())) for one in logs]
    assert spread_samples(samples, 1.0, 4096) == samples
    wide = np.log([one.tokens for one in spread_samples(samples, 4.0, 4096)])
    assert wide.std(axis=1, ddof=1).mean() == pytest.approx(0.4, rel=0.1)
    halves = wide[:, ::2].mean(axis=1), wide[:, 1::2].mean(axis=1)
    assert abs(np.corrcoef(*halves)[0, 1]) < 0.15
    assert max(max(one.tokens) for one in spread_samples(samples, 4.0, 500)) == 500
