"""Lengths: log-t agrees with scipy, figures by quadrature equal the formulas of the paper."""

import subprocess
import sys
from dataclasses import astuple
from itertools import pairwise

import numpy as np
import pytest
from scipy import integrate, stats

from flashedge.scheduling.lengths.distribution import LengthDistribution, LogT, compute_figures
from flashedge.scheduling.lengths.outputs import LengthRequest
from scripts.bench.mcts.point import Point
from tests.support.length_rig import LogNormal
from tests.support.paths import ROOT

TOKENS = np.array([0.5, 1.0, 20.0, 90.0, 150.0, 400.0, 3000.0, 32768.0])
SHARES = np.array([1e-6, 0.01, 0.1, 0.5, 0.9, 0.99, 1 - 1e-6])


@pytest.mark.parametrize("ours", [LogT(4.6, 0.5), LogT(4.6, 0.1, 2.2)], ids=repr)
def test_log_t_agrees_with_scipy(ours: LogT) -> None:
    student = stats.t(ours.nu, ours.mu, ours.sigma)
    survival = student.logsf(np.log(TOKENS))
    np.testing.assert_allclose(ours.log_survival(TOKENS), survival, rtol=1e-7)
    np.testing.assert_allclose(ours.inverse_survival(SHARES), np.exp(student.isf(SHARES)), 1e-7)
    assert ours.log_survival(np.array([-5.0, 0.0, np.inf])).tolist() == [0, 0, -np.inf]
    assert ours.log_survival(np.array(90.0)).shape == ()
    assert len({ours, eval(repr(ours))}) == 1


@pytest.mark.parametrize("values", [(np.inf, 1.0), (1.0, 0.0), (1.0, np.nan), (1.0, 1.0, -1.0)])
def test_impossible_parameters_are_refused(values: tuple[float, ...]) -> None:
    with pytest.raises(ValueError, match="must be"):
        LogT(*values)


def test_equal_prompts_have_one_key() -> None:
    def key(**fields: object) -> bytes:
        return LengthRequest(pair="p", max_tokens=9, **fields).prompt_key  # type: ignore[arg-type]

    assert key(text="a") == key(text="a", prompt_ids=(1, 2))
    assert key(prompt_ids=(1, 2)) == key(prompt_ids=(1, 2))
    assert len({key(text="a"), key(text="b"), key(prompt_ids=(1,)), key(prompt_ids=(2,))}) == 4
    assert LengthRequest(pair="p", max_tokens=9, prompt_ids=(7, 7)).num_prompt_tokens == 2
    assert LengthRequest(pair="p", max_tokens=9, prompt_tokens=5).num_prompt_tokens == 5


def test_the_scheduler_does_not_import_the_slow_parts_of_scipy() -> None:
    code = (
        "import sys, flashedge.scheduling.lengths.history, flashedge.scheduling.programs.active;"
        "assert not {'scipy.stats', 'torch', 'asyncio', 'matplotlib'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True)


@pytest.mark.parametrize("sigma", [0.01, 0.05, 0.2, 0.5, 1.0, 2.0, 4.0])
@pytest.mark.parametrize("limit", [100, 170, 1024, 32_768])
def test_the_figures_are_those_of_the_paper(sigma: float, limit: int) -> None:
    """Eq. (9) and (10), with G integrated over the standard t-distribution as in App. B."""
    mu, level, student = 5.0, 0.9, stats.t(3.5)

    def partial(low: float, high: float) -> float:
        points = [z for z in (-8, -2, 0, 2, 8, 30) if low < z < high]
        edges = [max(low, -700.0 / sigma), *points, high]
        density = lambda z: np.exp(mu + sigma * z) * student.pdf(z)  # noqa: E731
        ends = pairwise(edges)
        return sum(integrate.quad(density, *ab, epsrel=1e-10, limit=500)[0] for ab in ends)

    end = (np.log(limit) - mu) / sigma
    cut = limit * student.sf(end)
    found = compute_figures(LogT(mu, sigma), limit)
    assert found.expected == pytest.approx(partial(-np.inf, end) + cut, rel=5e-4)
    risk, expected, value = student.ppf(level), limit, limit
    if risk < end:
        expected, value = (partial(risk, end) + cut) / (1 - level), np.exp(mu + sigma * risk)
    assert found.conditional_value_at_risk == pytest.approx(expected, rel=5e-4)
    assert found.value_at_risk == pytest.approx(value)
    assert found.median == pytest.approx(min(np.exp(mu), limit))


def test_a_condition_far_in_the_tail_keeps_its_digits() -> None:
    """1 − cdf is 0 here. By hand: of a normal variable from 8.59 on, whose tail is about
    exponential."""
    found = compute_figures(LogNormal(5.0, 0.1), 4096, drawn=400)
    z = (np.log(400) - 5.0) / 0.1
    shares = np.array([0.5, 0.1])
    quantiles = np.exp(5.0 + 0.1 * stats.norm.isf(shares * stats.norm.sf(z)))
    assert (found.median, found.value_at_risk) == pytest.approx(tuple(quantiles), rel=1e-6)
    assert 400 < found.median < found.expected < found.conditional_value_at_risk < 430


@pytest.mark.parametrize(
    ("distribution", "limit", "drawn"),
    [
        (Point(300), 1024, 300),
        (LogNormal(5.0, 0.01), 1024, 900),
        (LogT(5.0, 0.4), 512, 512),
        (LogT(5.0, 0.4), 512, 600),
    ],
)
def test_an_output_that_outlives_its_prediction_or_its_limit_counts_as_long_as_that(
    distribution: LengthDistribution, limit: int, drawn: int
) -> None:
    assert set(astuple(compute_figures(distribution, limit, drawn=drawn))) == {limit}
