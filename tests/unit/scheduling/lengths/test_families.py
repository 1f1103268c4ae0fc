"""Every family agrees with scipy's, and with itself."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import numpy as np
import pytest
from scipy import stats

from flashedge.scheduling.lengths.base import LengthDistribution
from flashedge.scheduling.lengths.families.exponential import Exponential
from flashedge.scheduling.lengths.families.gamma import Gamma
from flashedge.scheduling.lengths.families.log_normal import LogNormal
from flashedge.scheduling.lengths.families.log_t import LogT
from flashedge.scheduling.lengths.families.point import Point
from flashedge.scheduling.lengths.families.weibull import Weibull
from tests.support.paths import ROOT

TOKENS = np.array([0.5, 1.0, 20.0, 90.0, 150.0, 400.0, 3000.0, 32768.0])
SHARES = np.array([1e-6, 0.01, 0.1, 0.5, 0.9, 0.99, 1 - 1e-6])


class LogTOfScipy:
    """scipy has no log-t distribution, but Student's."""

    def __init__(self, mu: float, sigma: float, nu: float) -> None:
        self._mu, self._sigma, self._t = mu, sigma, stats.t(nu)

    def cdf(self, tokens: Any) -> Any:
        return self._t.cdf((np.log(tokens) - self._mu) / self._sigma)

    def logpdf(self, tokens: Any) -> Any:
        density = self._t.logpdf((np.log(tokens) - self._mu) / self._sigma)
        return density - np.log(self._sigma * tokens)

    def logsf(self, tokens: Any) -> Any:
        return self._t.logsf((np.log(tokens) - self._mu) / self._sigma)

    def ppf(self, share: Any) -> Any:
        return np.exp(self._mu + self._sigma * self._t.ppf(share))

    def isf(self, share: Any) -> Any:
        return np.exp(self._mu + self._sigma * self._t.isf(share))


PAIRS: list[tuple[LengthDistribution, Any]] = [
    (LogT(4.6, 0.5), LogTOfScipy(4.6, 0.5, 3.5)),
    (LogT(4.6, 0.1, 2.2), LogTOfScipy(4.6, 0.1, 2.2)),
    (LogNormal(4.6, 0.5), stats.lognorm(0.5, scale=np.exp(4.6))),
    (Gamma(3.0, 50.0), stats.gamma(3.0, scale=50.0)),
    (Gamma(0.6, 200.0), stats.gamma(0.6, scale=200.0)),
    (Weibull(2.0, 120.0), stats.weibull_min(2.0, scale=120.0)),
    (Weibull(0.7, 120.0), stats.weibull_min(0.7, scale=120.0)),
    (Exponential(150.0), stats.expon(scale=150.0)),
]
OURS = [ours for ours, _ in PAIRS]


@pytest.mark.parametrize(("ours", "scipys"), PAIRS, ids=lambda one: type(one).__name__)
def test_a_family_agrees_with_scipy(ours: LengthDistribution, scipys: Any) -> None:
    np.testing.assert_allclose(ours.cdf(TOKENS), scipys.cdf(TOKENS), rtol=1e-9)
    np.testing.assert_allclose(ours.logpdf(TOKENS), scipys.logpdf(TOKENS), rtol=1e-9)
    np.testing.assert_allclose(ours.log_survival(TOKENS), scipys.logsf(TOKENS), rtol=1e-7)
    np.testing.assert_allclose(ours.quantile(SHARES), scipys.ppf(SHARES), rtol=1e-7)
    np.testing.assert_allclose(ours.inverse_survival(SHARES), scipys.isf(SHARES), rtol=1e-7)


@pytest.mark.parametrize("ours", OURS, ids=lambda one: type(one).__name__)
def test_a_family_agrees_with_itself(ours: LengthDistribution) -> None:
    np.testing.assert_allclose(ours.cdf(ours.quantile(SHARES)), SHARES, rtol=1e-6)
    survival = np.exp(ours.log_survival(ours.inverse_survival(SHARES)))
    np.testing.assert_allclose(survival, SHARES, rtol=1e-6)
    edges = np.linspace(1.0, 2000.0, 400_001)  # the density is the slope of the cdf
    area = np.trapezoid(np.exp(ours.logpdf(edges)), edges)
    assert area == pytest.approx(float(ours.cdf(edges[-1:])[0] - ours.cdf(edges[:1])[0]), abs=1e-6)


@pytest.mark.parametrize("ours", [*OURS, Point(90.0)], ids=lambda one: type(one).__name__)
def test_the_ends_of_the_range(ours: LengthDistribution) -> None:
    ends = np.array([-5.0, 0.0, np.inf])
    assert ours.cdf(ends).tolist() == [0, 0, 1]
    assert ours.logpdf(ends).tolist() == [-np.inf, -np.inf, -np.inf]
    assert ours.log_survival(ends).tolist() == [0, 0, -np.inf]


@pytest.mark.parametrize("ours", [*OURS, Point(90.0)], ids=lambda one: type(one).__name__)
def test_distributions_are_values(ours: LengthDistribution) -> None:
    assert len({ours, eval(repr(ours))}) == 1
    assert ours.cdf(np.array(90.0)).shape == ()
    assert ours.logpdf(np.full((2, 3), 90.0)).shape == (2, 3)


def test_a_point_is_one_length() -> None:
    point = Point(90.0)
    assert point.cdf(np.array([89.0, 90.0])).tolist() == [0, 1]
    assert point.logpdf(np.array([89.0, 90.0])).tolist() == [-np.inf, 0]
    assert point.quantile(SHARES).tolist() == point.inverse_survival(SHARES).tolist() == [90.0] * 7


def test_the_tail_of_a_gamma_distribution_continues_where_its_function_is_zero() -> None:
    tokens = np.linspace(640.0, 760.0, 241)  # e^-640 still is a number, e^-760 is not
    survival = Gamma(5.0, 1.0).log_survival(tokens)
    assert np.isfinite(survival).all()
    steps = np.diff(survival)
    assert np.diff(steps) == pytest.approx(0, abs=1e-4)  # no jump where the formula changes


@pytest.mark.parametrize(
    ("build", "values"),
    [
        (LogT, (np.inf, 1.0)),
        (LogT, (1.0, 0.0)),
        (LogT, (1.0, 1.0, -1.0)),
        (LogNormal, (1.0, -1.0)),
        (Gamma, (0.0, 1.0)),
        (Weibull, (1.0, np.nan)),
        (Exponential, (0.0,)),
        (Point, (0.0,)),
    ],
)
def test_impossible_parameters_are_refused(build: Any, values: tuple[float, ...]) -> None:
    with pytest.raises(ValueError, match="must be"):
        build(*values)


def test_the_model_does_not_import_the_slow_parts_of_scipy() -> None:
    code = (
        "import sys, scripts.bench.lengths.ks, flashedge.scheduling.programs.board;"
        "assert not {'scipy.stats', 'torch', 'asyncio', 'matplotlib'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True)
