"""Builds the predictor that the setting `scheduling_lengths` names."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable
from pathlib import Path

from flashedge.config import Config
from flashedge.errors import FlashEdgeError
from flashedge.learned.files import read_record
from flashedge.learned.settings import LOG_T
from flashedge.models.folders import last_change_s
from flashedge.models.specs import Pair
from flashedge.runtime.lengths.base import LengthPredictor
from flashedge.runtime.lengths.fallback import FallbackPredictor
from flashedge.runtime.lengths.history.predictor import HistoryPredictor
from flashedge.runtime.lengths.model_folders import find_folder, find_mismatch
from flashedge.runtime.lengths.stored_runs import read_newest
from flashedge.runtime.records.store import RunStore
from flashedge.scheduling.lengths.request import FinishedOutputs

log = logging.getLogger(__name__)
HISTORY, TEXT, OFF = "history", "text", "off"
MOST_RUNS = 2_000
MOST_SECONDS = 5.0
"""What reading the stored runs may take. The newest are read first."""


def build_predictor(pair: Pair, config: Config) -> LengthPredictor | None:
    """Build the predictor; None where the setting is off.

    The text model may take a second to load, so this belongs beside the event loop. Without a
    model that fits the pair, the history predictor stands in, and the log says why.
    """
    if config.scheduling_lengths == OFF:
        return None
    history = HistoryPredictor()
    if config.scheduling_lengths == HISTORY:
        return history
    folder = find_folder(pair.name, LOG_T, config)
    why = _find_obstacle(folder, pair, config)
    if why is None:
        from flashedge.runtime.lengths.text import TextPredictor

        try:
            return FallbackPredictor(TextPredictor.load(folder), history)
        except FlashEdgeError as error:
            why = error.line
    log.warning("lengths are predicted from history: %s", why)
    return history


def load_history(store: RunStore, pair: Pair, config: Config) -> Iterable[FinishedOutputs]:
    """Read what the history predictor learns from at its start: the newest runs of the pair as it
    is now. Ends after MOST_SECONDS. Raises StoreError."""
    until = time.monotonic() + MOST_SECONDS
    return read_newest(
        store,
        limit=MOST_RUNS,
        pair=pair.name,
        since_s=last_change_s(pair, config),
        is_late=lambda: time.monotonic() > until,
    )


def _find_obstacle(folder: Path, pair: Pair, config: Config) -> str | None:
    """Say why the text model can't serve the pair. None if it can."""
    try:
        record = read_record(folder)
    except FlashEdgeError as error:
        return error.line
    if record is None:
        return f"there is no text model of {pair.name}; train one: flashedge lengths train"
    changed = find_mismatch(record, pair, config)
    return None if changed is None else f"the text model does not fit: {changed}; train it again"
