"""Two predictors in turn: what the first does not know, the second is asked."""

from __future__ import annotations

from collections.abc import Sequence

from flashedge.runtime.lengths.base import LengthPredictor
from flashedge.scheduling.lengths.base import LengthDistribution
from flashedge.scheduling.lengths.request import FinishedOutputs, LengthRequest


class FallbackPredictor:
    """Implements `LengthPredictor`. Both learn."""

    def __init__(self, first: LengthPredictor, second: LengthPredictor) -> None:
        self._first, self._second = first, second

    def predict(self, requests: Sequence[LengthRequest]) -> list[LengthDistribution | None]:
        """See `LengthPredictor`."""
        found = self._first.predict(requests)
        missing = [i for i, one in enumerate(found) if one is None]
        if missing:
            others = self._second.predict([requests[i] for i in missing])
            for place, one in zip(missing, others, strict=True):
                found[place] = one
        return found

    def learn(self, finished: FinishedOutputs) -> None:
        """See `LengthPredictor`."""
        self._first.learn(finished)
        self._second.learn(finished)

    def explain(self, request: LengthRequest) -> str:
        """See `LengthPredictor`."""
        knows = self._first.predict([request])[0] is not None
        return (self._first if knows else self._second).explain(request)
