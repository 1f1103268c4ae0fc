"""The text predictor: a trained model reads the prompt. Trained by `flashedge lengths train`.

Ref: arXiv 2604.00499 §3.2.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from flashedge.client.words import format_count
from flashedge.errors import CheckpointError
from flashedge.learned.files import ModelRecord, load_model, read_record
from flashedge.runtime.lengths.history.explanation import describe_lengths
from flashedge.scheduling.lengths.base import LengthDistribution
from flashedge.scheduling.lengths.request import FinishedOutputs, LengthRequest

if TYPE_CHECKING:
    from flashedge.learned.model import LengthModel


class TextPredictor:
    """Implements `LengthPredictor` for one pair. It learns nothing from single runs."""

    def __init__(self, model: LengthModel, record: ModelRecord) -> None:
        self._model = model
        self.record = record

    @classmethod
    def load(cls, folder: Path) -> TextPredictor:
        """Load the model of a folder; imports torch. Raises CheckpointError."""
        record = read_record(folder)
        if record is None:
            raise CheckpointError(
                f"there is no length model in {folder}", hint="train one: flashedge lengths train"
            )
        return cls(load_model(folder, record.settings), record)

    def predict(self, requests: Sequence[LengthRequest]) -> list[LengthDistribution | None]:
        """See `LengthPredictor`. None for requests of other pairs, and for those whose prompt the
        model can't read."""
        own = [i for i, request in enumerate(requests) if request.pair == self.record.pair]
        found: list[LengthDistribution | None] = [None] * len(requests)
        for place, one in zip(own, self._model.predict([requests[i] for i in own]), strict=True):
            found[place] = one
        return found

    def learn(self, finished: FinishedOutputs) -> None:
        """See `LengthPredictor`. The model changes only when it is trained again."""

    def explain(self, request: LengthRequest) -> str:
        """See `LengthPredictor`."""
        (found,) = self.predict([request])
        if found is None:
            return f"the text model of {self.record.pair} can't read this request"
        facts = self.record.provenance
        return (
            f"{describe_lengths(found)}\n"
            f"a {self.record.settings.objective} model read the prompt; it was trained on"
            f" {format_count(int(facts['num_prompts']), 'prompt')} on {facts['date']}"
        )
