"""Predicts the lengths of requests for the schedulers of all pairs, by what their runs showed.

A request joins the schedule as long as its limit. Its prediction arrives a turn of the event loop
later or, for the first of its pair, once the pair's stored runs have been read in a thread.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Iterator

from flashedge.config import Config
from flashedge.errors import NotFound, RequestError
from flashedge.models.folders import last_change_s
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
"""What reading the stored runs may take. The newest are read first."""
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
    """Asks for predictions and passes on what ended. Never raises and never waits."""

    def __init__(self, config: Config, store: RunStore) -> None:
        self._config = config
        self._store = store
        self._predictors: dict[str, HistoryPredictor] = {}
        """By pair, once its stored runs were read."""
        self._waiting: dict[str, list[tuple[LengthRequest, Receive]]] = {}
        """By pair: what was asked before that."""
        self._tasks: set[asyncio.Task[None]] = set()
        self._is_stopping = False

    def submit(self, request: LengthRequest, receive: Receive) -> None:
        """`receive` gets the prediction on the event loop, or never if no run has ended."""
        if self._config.scheduling_lengths == OFF:
            return
        loop = asyncio.get_running_loop()
        if request.pair in self._predictors:
            loop.call_soon(self._predict, request, receive)
        elif request.pair in self._waiting:
            self._waiting[request.pair].append((request, receive))
        else:
            self._waiting[request.pair] = [(request, receive)]
            task = loop.create_task(self._open(request.pair), name="read-lengths")
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    def learn(self, finished: FinishedOutputs) -> None:
        predictor = self._predictors.get(finished.request.pair)
        if predictor is not None:
            asyncio.get_running_loop().call_soon(predictor.learn, finished)

    async def stop(self) -> None:
        self._is_stopping = True
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _predict(self, request: LengthRequest, receive: Receive) -> None:
        found = self._predictors[request.pair].predict(request)
        if found is not None and not self._is_stopping:
            receive(found)

    async def _open(self, pair: str) -> None:
        try:
            self._predictors[pair] = await asyncio.to_thread(self._learn_stored, pair)
        except Exception as error:
            failure = f"{type(error).__name__}: {error}"
            log.warning("no lengths are learned from the stored runs of %s: %s", pair, failure)
            self._predictors[pair] = HistoryPredictor()
        for request, receive in self._waiting.pop(pair):
            self._predict(request, receive)

    # ------------------------------------------------------------ stored runs, in a thread

    def _learn_stored(self, name: str) -> HistoryPredictor:
        """Learn from the newest runs of the pair as it is now, the oldest of them first."""
        until = time.monotonic() + MOST_SECONDS
        since_s = last_change_s(find_pair(name, self._config), self._config)
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
