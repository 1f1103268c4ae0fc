"""Decides which runs of one pair start, and in which order its engines serve what they have.

All that is kept of a pair's programs is here, so that what runs on another pair changes nothing:
neither what has room, nor how many runs may wait.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from flashedge.config import Config
from flashedge.runtime.lengths.predictions import Predictions
from flashedge.runtime.programs.order_sender import SendOrder
from flashedge.runtime.programs.outlooks import Outlooks
from flashedge.runtime.programs.programs import NoteWait, Programs, note_nothing
from flashedge.runtime.queue import RunQueue


class PairScheduler:
    """The programs of one pair, the queue of its runs, and what users see of both."""

    def __init__(
        self,
        pair: str,
        config: Config,
        send_order: SendOrder,
        predictions: Predictions | None = None,
        clock: Callable[[], float] = time.monotonic,
        note_wait: NoteWait = note_nothing,
    ) -> None:
        """send_order: sends the order of programs to the engines of this pair."""
        self.programs = Programs(config, send_order, predictions, clock, note_wait)
        self.queue = RunQueue(self.programs, config.queue_limit)
        self.programs.on_change = self.queue.admit
        self.outlooks = Outlooks(pair, self.programs, self.queue)
