"""How much of what differs between prompts a predictor knows, as `policies` asks for it."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from flashedge.runtime.lengths.base import LengthPredictor
from flashedge.scheduling.lengths.base import LengthDistribution
from flashedge.scheduling.lengths.families.log_t import LogT
from flashedge.scheduling.lengths.fit import fit
from flashedge.scheduling.lengths.request import FinishedOutputs
from scripts.lab.statistics import pearson


def measure_explained(
    predictor: LengthPredictor, finished: Sequence[FinishedOutputs]
) -> tuple[float, float]:
    """The shares of the variance of mu and of log sigma over prompts that predictions explain.

    predictor: says log-t distributions. Each share is the squared correlation with what fits the
    prompt's own outputs, which should be many: the errors of the fit count as the predictor's. A
    wrong scale does not count, since it changes no order. Ref: arXiv 2604.00499 §3.2.
    """
    said = [_read(one) for one in predictor.predict([one.request for one in finished])]
    true = [_read(fit("log_t", o.lengths.tokens, o.lengths.is_censored)) for o in finished]
    mu, log_sigma = (
        pearson(predicted, known)
        for predicted, known in zip(zip(*said, strict=True), zip(*true, strict=True), strict=True)
    )
    return mu**2, log_sigma**2


def _read(distribution: LengthDistribution | None) -> tuple[float, float]:
    """mu and log sigma."""
    assert isinstance(distribution, LogT)
    return distribution.mu, float(np.log(distribution.sigma))
