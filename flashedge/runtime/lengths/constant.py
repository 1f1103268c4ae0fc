"""The simplest predictor: all prompts alike. What a better one must beat."""

from __future__ import annotations

from collections.abc import Sequence

from flashedge.runtime.lengths.history.cell import Cell
from flashedge.runtime.lengths.history.explanation import NO_RUNS, describe_lengths
from flashedge.runtime.lengths.history.predictor import FIRST_PRIOR
from flashedge.scheduling.lengths.base import LengthDistribution
from flashedge.scheduling.lengths.posterior import fit_posterior
from flashedge.scheduling.lengths.request import FinishedOutputs, LengthRequest


class ConstantPredictor:
    """Implements `LengthPredictor` with one distribution, fitted to all requests that ended."""

    def __init__(self) -> None:
        self._cell = Cell()

    def predict(self, requests: Sequence[LengthRequest]) -> list[LengthDistribution | None]:
        """See `LengthPredictor`. None before the first run has ended."""
        if not self._cell.version:
            return [None] * len(requests)
        fit = fit_posterior(self._cell.get_points(), FIRST_PRIOR)
        return [fit.distribution] * len(requests)

    def learn(self, finished: FinishedOutputs) -> None:
        """See `LengthPredictor`."""
        lengths = finished.lengths
        if lengths.num_outputs > 0:
            self._cell.add(lengths, weight=1.0, share=1 / lengths.num_outputs, keep=1.0)

    def explain(self, request: LengthRequest) -> str:
        """See `LengthPredictor`."""
        (found,) = self.predict([request])
        return NO_RUNS if found is None else f"{describe_lengths(found)}, as of every request"
