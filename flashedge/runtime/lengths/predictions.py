"""Predicts the output lengths of requests for the schedulers of all pairs, by the pairs' past runs.

A request joins the schedule as if its outputs were as long as its limit. Its prediction arrives in
the event loop's next turn, or once a thread has read the pair's stored runs.
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
OFF = "off"  # the value of the setting scheduling_lengths
MAX_RUNS, MAX_READING_S = 2_000, 5.0
"""Limits on the stored runs that are read for a pair, newest first. Chosen by hand: the first
predictions wait for the reading, and a tenth may hold no run of a rare strategy."""
PAGE = 200
"""Runs in one query of the store, which other threads wait for."""

Receive = Callable[[LengthDistribution], None]


def describe_search(
    spec: Request, prompt_ids: TokenIds = (), *, prompt_tokens: int = 0
) -> LengthRequest:
    """Describe a search for a predictor. prompt_tokens: needed where `prompt_ids` is unknown."""
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
    """The predictor of each pair, which learns from ended runs. Its calls don't block."""

    def __init__(self, config: Config, store: RunStore) -> None:
        self._config = config
        self._store = store
        self._predictors: dict[str, asyncio.Task[HistoryPredictor]] = {}
        """By pair. A task is done once the pair's stored runs have been read."""
        self._is_stopping = False

    def submit(self, request: LengthRequest, receive: Receive) -> None:
        """Predict in the background. `receive` gets the prediction, if any, on the event loop."""
        if self._config.scheduling_lengths == OFF:
            return
        if (task := self._predictors.get(request.pair)) is None:
            reading = self._read_stored(request.pair)
            task = self._predictors[request.pair] = asyncio.create_task(reading)
        task.add_done_callback(partial(self._predict, request, receive))

    def learn(self, finished: FinishedOutputs) -> None:
        """Learn from a request that ended, unless the pair's stored runs are still being read."""
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

    def _learn_stored(self, name: str) -> HistoryPredictor:
        """Learn from the pair's newest runs since its models last changed, oldest first."""
        until = time.monotonic() + MAX_READING_S
        since_s = find_last_change_s(find_pair(name, self._config), self._config)
        found: list[FinishedOutputs] = []
        for stored in iterate_newest(self._store, since_s):
            if len(found) == MAX_RUNS or self._is_stopping or time.monotonic() > until:
                break
            if stored.spec.get("pair") == name and (run := read_run(self._store, stored)):
                found.append(run)
        predictor = HistoryPredictor()
        for finished in reversed(found):
            predictor.learn(finished)
        return predictor


def read_run(store: RunStore, stored: StoredRun) -> FinishedOutputs | None:
    """Read the output lengths of a stored run. None if no path is known, or if this version can't
    read the request. Raises StoreError."""
    try:
        spec = Request.from_json(stored.spec)
    except (KeyError, TypeError, ValueError, RequestError):
        return None
    outline = store.outline(stored.id)
    if (lengths := count_outline(outline)) is None:
        return None
    request = describe_search(spec, prompt_tokens=outline.prompt_tokens or 0)
    return FinishedOutputs(request=request, lengths=lengths)


def iterate_newest(store: RunStore, since_s: float) -> Iterator[StoredRun]:
    """Yield the runs that are over, newest first, up to the first one submitted before `since_s`
    (unix seconds). Ends early if a page's last run is deleted meanwhile."""
    before = None
    while True:
        try:
            page = store.list_runs(limit=PAGE, before=before)
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
