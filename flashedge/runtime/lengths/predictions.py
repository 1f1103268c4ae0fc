"""Predicts the lengths of requests for the schedulers of all pairs, by what their runs showed.

A request joins the schedule as if its outputs were as long as its limit. Its prediction arrives a
turn of the event loop later, or once the pair's stored runs have been read in a thread.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Iterator
from functools import partial

from flashedge.config import Config
from flashedge.errors import NotFound, RequestError
from flashedge.models.folders import find_last_change_s
from flashedge.models.registry import find_pair
from flashedge.runtime.lengths.path_counter import count_outline
from flashedge.runtime.records.store import UNFINISHED, RunStore, StoredRun
from flashedge.runtime.request.validation import Request
from flashedge.scheduling.lengths.distribution import LengthDistribution
from flashedge.scheduling.lengths.history import HistoryPredictor
from flashedge.scheduling.lengths.outputs import FinishedOutputs, LengthRequest
from flashedge.types import TokenIds

log = logging.getLogger(__name__)
OFF = "off"
MOST_RUNS, MOST_SECONDS = 2_000, 5.0
"""The most that is read of the stored runs, and for how long. The newest are read first."""
PAGE = 200

Receive = Callable[[LengthDistribution], None]


def describe_search(
    spec: Request, prompt_ids: TokenIds = (), *, prompt_tokens: int = 0
) -> LengthRequest:
    """prompt_ids: the prompt, or prompt_tokens: how many they are."""
    turns = (f"{turn.role}: {turn.content}" for turn in spec.problem.messages)
    return LengthRequest(
        pair=spec.pair,
        kind=spec.strategy,
        prompt_ids=prompt_ids or spec.prompt_ids or (),
        prompt_tokens=prompt_tokens,
        text="\n".join(turns),
        outputs=spec.n,
        max_tokens=spec.max_path_tokens,
    )


class Predictions:
    """The predictor of each pair: learns from runs that ended. Never raises and never waits."""

    def __init__(self, config: Config, store: RunStore) -> None:
        self._config = config
        self._store = store
        self._predictors: dict[str, asyncio.Task[HistoryPredictor]] = {}
        """By pair. A task is done once the pair's stored runs have been read."""
        self._is_stopping = False

    def submit(self, request: LengthRequest, receive: Receive) -> None:
        """`receive` gets the prediction on the event loop, or never if no run has ended."""
        if self._config.scheduling_lengths == OFF:
            return
        if (task := self._predictors.get(request.pair)) is None:
            reading = self._read_stored(request.pair)
            task = self._predictors[request.pair] = asyncio.create_task(reading)
        task.add_done_callback(partial(self._predict, request, receive))

    def learn(self, finished: FinishedOutputs) -> None:
        task = self._predictors.get(finished.request.pair)
        if task is not None and task.done() and not task.cancelled():
            asyncio.get_running_loop().call_soon(task.result().learn, finished)

    async def stop(self) -> None:
        self._is_stopping = True
        for task in self._predictors.values():
            task.cancel()
        await asyncio.gather(*self._predictors.values(), return_exceptions=True)

    def _predict(
        self, request: LengthRequest, receive: Receive, task: asyncio.Task[HistoryPredictor]
    ) -> None:
        if self._is_stopping or task.cancelled():
            return
        if (found := task.result().predict(request)) is not None:
            receive(found)

    async def _read_stored(self, pair: str) -> HistoryPredictor:
        try:
            return await asyncio.to_thread(self._learn_stored, pair)
        except Exception as error:
            failure = f"{type(error).__name__}: {error}"
            log.warning("no lengths are learned from the stored runs of %s: %s", pair, failure)
            return HistoryPredictor()

    # ------------------------------------------------------------ stored runs, in a thread

    def _learn_stored(self, name: str) -> HistoryPredictor:
        """Learn from the newest runs of the pair as it is now, the oldest of them first."""
        until = time.monotonic() + MOST_SECONDS
        since_s = find_last_change_s(find_pair(name, self._config), self._config)
        found: list[FinishedOutputs] = []
        for stored in iter_newest(self._store, since_s):
            if len(found) == MOST_RUNS or self._is_stopping or time.monotonic() > until:
                break
            if stored.spec.get("pair") == name:
                run = read_run(self._store, stored)
                found += [] if run is None else [run]
        predictor = HistoryPredictor()
        for finished in reversed(found):
            predictor.learn(finished)
        return predictor


def read_run(store: RunStore, stored: StoredRun) -> FinishedOutputs | None:
    """None without a path, and for the request of another version. Raises StoreError."""
    try:
        spec = Request.from_json(stored.spec)
    except (KeyError, TypeError, ValueError, RequestError):
        return None
    outline = store.outline(stored.id)
    lengths = count_outline(outline)
    if lengths is None:
        return None
    request = describe_search(spec, prompt_tokens=outline.prompt_tokens or 0)
    return FinishedOutputs(request=request, lengths=lengths)


def iter_newest(store: RunStore, since_s: float) -> Iterator[StoredRun]:
    """The runs that are over, newest first, submitted since then (unix seconds). Ends early where a
    page's last run is removed."""
    before = None
    while True:
        try:
            page = store.list(limit=PAGE, before=before)
        except NotFound:
            return
        for stored in page:
            if stored.created_at < since_s:
                return
            if stored.status not in UNFINISHED:
                yield stored
        if len(page) < PAGE:
            return
        before = page[-1].id
