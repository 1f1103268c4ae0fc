"""Words for a prediction: what it is, and which runs it comes from."""

from __future__ import annotations

from collections.abc import Sequence
from math import exp

import numpy as np

from flashedge.client.words import format_count
from flashedge.scheduling.lengths.base import LengthDistribution
from flashedge.scheduling.lengths.posterior import Posterior

NamedFit = tuple[str, float, Posterior]
"""Which runs a group holds, how many, and their fit."""
NO_RUNS = "nothing is known: no run has ended yet, so the request counts as long as its limit"


def describe_lengths(distribution: LengthDistribution) -> str:
    """Say what is predicted: "312 tokens at the median, 190 to 515 for 8 of 10 outputs"."""
    low, median, high = distribution.quantile(np.array([0.1, 0.5, 0.9]))
    return f"{median:,.0f} tokens at the median, {low:,.0f} to {high:,.0f} for 8 of 10 outputs"


def explain_groups(
    groups: Sequence[NamedFit], *, fit: Posterior, own_runs: float, correction: float
) -> str:
    """Explain a prediction.

    groups: from the largest to the smallest. fit: the prediction. own_runs: of the very prompt.
    correction: what was added to mu, because the last runs were longer than their groups.
    """
    lines = [describe_lengths(fit.distribution)]
    if correction:
        lines.append(f"the last runs were {exp(correction):.2f} times as long as their groups say")
    if own_runs:
        lines.append(f"{_count(own_runs)} of this very prompt say so, drawn towards its group:")
    else:
        lines.append("the prompt is new; its group says so:")
    lines += [
        f"  {words} ({_count(runs)}): {describe_lengths(one.distribution)}"
        for words, runs, one in reversed(groups)
    ]
    return "\n".join(lines)


def _count(runs: float) -> str:
    """Count runs, the forgotten ones less."""
    return "less than 1 run" if runs < 0.5 else format_count(max(1, round(runs)), "run")
