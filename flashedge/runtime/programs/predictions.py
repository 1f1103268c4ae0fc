"""The predictors of lengths of all pairs, of which each has a thread of its own.

A pair's predictor is built with the first request that asks for it, beside the event loop. Requests
that come meanwhile are predicted once it stands.
"""

from __future__ import annotations

import asyncio
import logging
from functools import partial

from flashedge.config import Config
from flashedge.errors import FlashEdgeError
from flashedge.models.registry import find_pair
from flashedge.runtime.lengths.build import OFF, build_predictor, load_history
from flashedge.runtime.lengths.prediction_queue import PredictionQueue, Receive
from flashedge.runtime.records.store import RunStore
from flashedge.scheduling.lengths.request import FinishedOutputs, LengthRequest

log = logging.getLogger(__name__)


class Predictions:
    """Asks for predictions and passes on what ended. Never raises and never waits."""

    def __init__(self, config: Config, store: RunStore) -> None:
        self._config = config
        self._store = store
        self._queues: dict[str, PredictionQueue | None] = {}
        """By pair. None where nothing predicts."""
        self._asked: dict[str, list[tuple[LengthRequest, Receive]]] = {}
        """By pair: what waits until its predictor stands."""
        self._tasks: set[asyncio.Task[None]] = set()

    def submit(self, request: LengthRequest, receive: Receive) -> None:
        """Ask for a prediction. `receive` is called with it on the event loop, or never."""
        if self._config.scheduling_lengths == OFF:
            return
        pair = request.pair
        if pair in self._queues:
            queue = self._queues[pair]
            if queue is not None:
                queue.submit(request, receive)
            return
        waiting = self._asked.setdefault(pair, [])
        waiting.append((request, receive))
        if len(waiting) == 1:
            task = asyncio.get_running_loop().create_task(self._open(pair), name="open-predictor")
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    def learn(self, finished: FinishedOutputs) -> None:
        """A request is over. It was submitted before."""
        queue = self._queues.get(finished.request.pair)
        if queue is not None:
            queue.learn(finished)

    async def stop(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for queue in self._queues.values():
            if queue is not None:
                await queue.stop()

    async def _open(self, name: str) -> None:
        try:
            queue = await self._build(name)
        except FlashEdgeError as error:
            log.warning("no lengths are predicted for %s: %s", name, error.line)
            queue = None
        self._queues[name] = queue
        for request, receive in self._asked.pop(name):
            if queue is not None:
                queue.submit(request, receive)

    async def _build(self, name: str) -> PredictionQueue | None:
        """Raises NotFound, ConfigError."""
        pair = find_pair(name, self._config)
        predictor = await asyncio.to_thread(build_predictor, pair, self._config)
        if predictor is None:
            return None
        queue = PredictionQueue(predictor)
        queue.start(partial(load_history, self._store, pair, self._config))
        return queue
