"""Finish-time fairness: how evenly programs wait for their length.

phi = time in the shared system / output tokens, which is about proportional to the time in the
shared system over the time alone, where decoding takes most of the time. The lower the better, and
the more even the fairer.

Ref: arXiv 2412.20993 App. D.3.1, G.3.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

from flashedge.statistics import mean
from scripts.lab.benchmark.load.record import ProgramRecord
from scripts.lab.benchmark.load.timings import Timings

CURVE_SHARES = tuple(i / 20 for i in range(1, 21))


def compute_jain(values: Sequence[float] | NDArray[np.float64]) -> float:
    """Jain's index, (sum x)^2 / (n sum x^2): 1 where all values are equal, 1/n where one has all.
    NaN without values.

    Ref: R. Jain, D. Chiu, W. Hawe, A quantitative measure of fairness, DEC-TR-301, 1984.
    """
    given = np.asarray(values, dtype=np.float64)
    squares = len(given) * float((given**2).sum())
    return float(given.sum()) ** 2 / squares if squares > 0 else float("nan")


def list_fairness_curve(
    timings: Timings, shares: Sequence[float] = CURVE_SHARES
) -> list[tuple[float, float]]:
    """(share, phi) points: this share of the programs has at most this phi. The paper's Fig. 20."""
    if not len(timings):
        return []
    values = np.quantile(timings.per_token_s, shares)
    return [(share, float(value)) for share, value in zip(shares, values, strict=True)]


def average_by_client(records: Iterable[ProgramRecord]) -> dict[str, float]:
    """The mean phi of each client with finished programs."""
    groups: defaultdict[str, list[ProgramRecord]] = defaultdict(list)
    for record in records:
        groups[record.client].append(record)
    found = {name: Timings.of_records(group) for name, group in sorted(groups.items())}
    return {name: mean(one.per_token_s.tolist()) for name, one in found.items() if len(one)}
