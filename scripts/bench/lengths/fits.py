"""Which family do the lengths of one prompt's outputs follow?

    python -m scripts.bench.lengths.fits

Fits six families to the lengths of each prompt and counts how many fits Kolmogorov and Smirnov's
test accepts (p > 0.05, Table 1 of arXiv 2604.00499). As in the paper the test takes the
distribution as given, though it was fitted to the same lengths. Then it fits every second output
and counts how many of the others lie below the quantiles: of a share p, p should.

The lengths are those of the trace in the package: the totals of 100 problems with 8 samples each
(few, so a test fails little whatever the family), and their steps pooled for each problem, which
often share equal lengths and are not independent. Brackets are 95 % bootstrap intervals over
prompts. The last line is JSON.
"""

import argparse
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import numpy as np
from scipy import stats

from flashedge.scheduling.lengths.distribution import NU, Floats
from scripts.bench.daemon import report
from scripts.bench.flashtts.study import format_table
from scripts.bench.smoke import parse_arguments
from scripts.lab.benchmark.lengths import load_trace
from scripts.lab.statistics import interval, mean

ADEQUATE = 0.05
LEVELS = np.arange(1, 20) / 20


def fit_logs(family: Any, **fixed: float) -> Callable[[Floats], tuple[Any, bool]]:
    """Fits a distribution to ln tokens."""
    return lambda tokens: (family(*family.fit(np.log(tokens), **fixed)), True)


def fit_tokens(family: Any) -> Callable[[Floats], tuple[Any, bool]]:
    """Fits a distribution that begins at 0 tokens."""
    return lambda tokens: (family(*family.fit(tokens, floc=0)), False)


FAMILIES: Mapping[str, Callable[[Floats], tuple[Any, bool]]] = MappingProxyType(
    {
        "log_t": fit_logs(stats.t, f0=NU),
        "log_t_free": fit_logs(stats.t),
        "log_normal": fit_logs(stats.norm),
        "gamma": fit_tokens(stats.gamma),
        "weibull": fit_tokens(stats.weibull_min),
        "exponential": fit_tokens(stats.expon),
    }
)
"""By name: what fits lengths, and says whether the fitted distribution is of ln tokens."""


def measure_prompt(name: str, tokens: Floats) -> tuple[float, Floats]:
    """Whether the test accepts the fit to all outputs (1 or 0), and the share of every second
    output below each quantile of the fit to the others. An integer stands for the lengths that are
    rounded to it, so one within half a token of a quantile counts in part."""
    fitted, is_log = FAMILIES[name](tokens)
    p_value = stats.kstest(np.log(tokens) if is_log else tokens, fitted.cdf).pvalue
    fitted, is_log = FAMILIES[name](tokens[::2])
    quantiles = np.exp(fitted.ppf(LEVELS)) if is_log else fitted.ppf(LEVELS)
    below = np.clip(quantiles - tokens[1::2, None] + 0.5, 0, 1).mean(axis=0)
    return float(p_value > ADEQUATE), below


def study_set(prompts: Sequence[Floats]) -> dict[str, dict[str, Any]]:
    """By family: the share of accepted fits with its interval, and how far the shares below the
    quantiles are from those they should be."""
    found = {}
    for name in FAMILIES:
        passes, below = zip(*(measure_prompt(name, tokens) for tokens in prompts), strict=True)
        error = np.abs(np.mean(below, axis=0) - LEVELS).mean()
        figures = [round(float(one), 4) for one in (mean(passes), *interval(passes))]
        found[name] = {"passes": figures, "calibration_error": round(float(error), 4)}
    return found


def read_trace() -> dict[str, list[Floats]]:
    """The lengths of each prompt of the trace whose fitted lengths are not all equal."""
    rows = [row.step_tokens for row in load_trace("math").rows]
    totals = [np.array([float(sum(steps)) for steps in row]) for row in rows]
    sets = {"trace totals": totals, "trace steps": [np.concatenate(row) * 1.0 for row in rows]}
    return {name: [one for one in found if np.ptp(one[::2])] for name, found in sets.items()}


def main() -> None:
    parse_arguments(argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0]))
    sets = {name: study_set(prompts) for name, prompts in read_trace().items()}
    for name, found in sets.items():
        rows = [
            (family, "{:.3f} ({:.3f} to {:.3f})".format(*one["passes"]), one["calibration_error"])
            for family, one in found.items()
        ]
        print(format_table(("family", "KS passes", "calibration error"), rows, name), end="\n\n")
    report(adequate_above=ADEQUATE, sets=sets)


if __name__ == "__main__":
    main()
