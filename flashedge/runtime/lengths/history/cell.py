"""A group of alike outputs: a histogram of their lengths that forgets.

Each run that is added makes what was there count a little less, so that the histogram follows a
workload that changes. Its size does not depend on the number of runs.
"""

from __future__ import annotations

from math import log

import numpy as np

from flashedge.scheduling.lengths.observed import OutputLengths
from flashedge.scheduling.lengths.posterior import LengthPoints

BIN = 0.03
"""Width of a bin of ln tokens: lengths within 3 % of each other count as equal."""
LONGEST = 1 << 24
FADED = 1e-4
"""Weight below which a bin is removed."""


class Cell:
    """Lengths of one group."""

    def __init__(self) -> None:
        self._bins: dict[int, list[float]] = {}
        self.runs = 0.0
        """Runs, each counting as much as has not been forgotten of it."""
        self.version = 0
        """Changes with each run that is added."""

    @property
    def num_bins(self) -> int:
        return len(self._bins)

    def add(self, lengths: OutputLengths, *, weight: float, share: float, keep: float) -> None:
        """Add a run.

        weight: how much the run counts in `runs`. share: how much each of its outputs counts.
        keep: share in (0, 1] of what was there before that remains.
        """
        self.fade(keep)
        self.runs += weight
        self.version += 1
        for tokens, is_censored, count in zip(
            lengths.tokens, lengths.is_censored, lengths.weights, strict=True
        ):
            bin_ = self._bins.setdefault(round(log(min(tokens, LONGEST)) / BIN), [0.0, 0.0])
            bin_[is_censored] += count * share

    def fade(self, keep: float) -> None:
        """Let all that is there count `keep` times as much. keep: in (0, 1]."""
        if keep == 1:
            return
        self.runs *= keep
        self._bins = {
            at: [keep * ended, keep * cut]
            for at, (ended, cut) in self._bins.items()
            if max(ended, abs(cut)) * keep > FADED
        }

    def get_points(self) -> LengthPoints:
        """The histogram, shortest lengths first."""
        items = sorted(self._bins.items())
        counts = np.array([counts for _, counts in items], dtype=np.float64).reshape(-1, 2)
        logs = np.array([at for at, _ in items], dtype=np.float64) * BIN
        return LengthPoints(logs=logs, ended=counts[:, 0], censored=counts[:, 1])
