"""Which family do the lengths of one prompt's answers follow?

Kolmogorov and Smirnov's test accepts a fit with p > 0.05. As in the paper it takes the distribution
as given, though it was fitted to the same lengths. Cut answers count as longer in the fit, and the
test compares the lengths below the limit.

Ref: arXiv 2604.00499 Table 1, App. D.3.
"""

import warnings
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

import numpy as np
from scipy import stats

from flashedge.scheduling.lengths.distribution import NU
from scripts.bench.lengths.samples import Samples
from scripts.lab.statistics import interval, mean

ADEQUATE = 0.05
FAMILIES: Mapping[str, tuple[Any, dict[str, float]]] = MappingProxyType(
    {
        "log-t": (stats.t, {"f0": NU}),
        "log-t, nu free": (stats.t, {}),
        "log-normal": (stats.norm, {}),
        "gamma": (stats.gamma, {"floc": 0}),
        "Weibull": (stats.weibull_min, {"floc": 0}),
        "exponential": (stats.expon, {"floc": 0}),
    }
)
"""By name: a family with the parameters that are fixed. The first three are of ln tokens."""
IN_LOGS = tuple(FAMILIES)[:3]


def compute_p_value(samples: Samples, family: Any, fixed: Mapping[str, float], logs: bool) -> float:
    """Fit the family to all answers, and test it."""
    values = np.log(samples.lengths) if logs else samples.lengths.astype(np.float64)
    cut = samples.is_cut
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the search passes through impossible parameters
        data = stats.CensoredData.right_censored(values, cut) if cut.any() else values
        fitted = family(*family.fit(data, **fixed))
    ended, count = np.sort(values[~cut]), len(values)
    below, at = fitted.cdf(ended), np.arange(len(ended))
    gaps = [(at + 1) / count - below, below - at / count]
    if cut.any():
        gaps.append(np.array([abs(len(ended) / count - fitted.cdf(values[cut][0]))]))
    return float(stats.kstwo.sf(np.concatenate(gaps).max(), count))


def study_families(prompts: Sequence[Samples]) -> dict[str, list[float]]:
    """By family: the share of accepted fits with its interval over the prompts."""
    found = {}
    for name, (family, fixed) in FAMILIES.items():
        passes = [
            float(compute_p_value(one, family, fixed, name in IN_LOGS) > ADEQUATE)
            for one in prompts
        ]
        found[name] = [round(float(one), 3) for one in (mean(passes), *interval(passes))]
    return found


def study_freedom(prompts: Sequence[Samples], nus: Sequence[float]) -> dict[float, float]:
    """By the degrees of freedom that all prompts share: the mean p-value."""
    return {
        nu: round(mean([compute_p_value(s, stats.t, {"f0": nu}, True) for s in prompts]), 4)
        for nu in nus
    }
