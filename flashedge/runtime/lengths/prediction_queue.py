"""Predicts in a thread of its own, so that a new request never waits for its prediction.

A request enters the schedule as long as its `max_tokens`. Its prediction reaches the event loop
later. The thread takes requests together: it waits up to 3 ms for more, or until it has 32.
Whatever goes wrong there, requests just keep their `max_tokens`, and the log says why, once.

Ref: arXiv 2604.00499 §5.
"""

from __future__ import annotations

import asyncio
import logging
import queue
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import partial

from flashedge.runtime.lengths.base import LengthPredictor
from flashedge.scheduling.lengths.base import LengthDistribution
from flashedge.scheduling.lengths.request import FinishedOutputs, LengthRequest

log = logging.getLogger(__name__)
MAX_WAIT_S = 0.003
MAX_BATCH = 32
STOP_TIMEOUT_S = 5.0

Receive = Callable[[LengthDistribution], None]
Load = Callable[[], Iterable[FinishedOutputs]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """A request whose lengths are to be predicted."""

    request: LengthRequest
    receive: Receive


@dataclass(frozen=True, slots=True)
class Stop:
    """The thread is to end."""


Item = Asked | FinishedOutputs | Stop


@dataclass(slots=True, kw_only=True)
class PredictionBatch:
    """What the thread does next."""

    asked: list[Asked] = field(default_factory=list)
    finished: list[FinishedOutputs] = field(default_factory=list)
    is_last: bool = False

    def add(self, item: Item) -> None:
        match item:
            case Asked():
                self.asked.append(item)
            case FinishedOutputs():
                self.finished.append(item)
            case Stop():
                self.is_last = True


def collect_batch(
    get: Callable[[float | None], Item],
    now: Callable[[], float],
    *,
    max_wait_s: float = MAX_WAIT_S,
    max_batch: int = MAX_BATCH,
) -> PredictionBatch:
    """Wait for the first request, then for more. What ended without a request waits for nobody.

    get: takes the next item and waits so many seconds for it, None for ever; raises queue.Empty.
    now: seconds of a clock that never goes back.
    """
    batch, until = PredictionBatch(), None
    while not batch.is_last and len(batch.asked) < max_batch:
        wait_s = None if until is None else until - now()
        if wait_s is not None and wait_s <= 0:
            break
        try:
            batch.add(get(wait_s))
        except queue.Empty:
            break
        if until is None:
            if not batch.asked:
                break
            until = now() + max_wait_s
    return batch


class PredictionQueue:
    """Requests on their way to a predictor, and predictions on their way back."""

    def __init__(
        self,
        predictor: LengthPredictor,
        *,
        max_wait_s: float = MAX_WAIT_S,
        max_batch: int = MAX_BATCH,
    ) -> None:
        self._predictor = predictor
        self._max_wait_s = max_wait_s
        self._max_batch = max_batch
        self._inbox: queue.SimpleQueue[Item] = queue.SimpleQueue()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._is_stopping = False
        self._failure: str | None = None

    def start(self, load: Load | None = None) -> None:
        """Start the thread for the running event loop. load: called there first; returns what to
        learn from before anything is predicted."""
        self._loop = asyncio.get_running_loop()
        self._thread = threading.Thread(
            target=self._work, args=(load,), name="length predictions", daemon=True
        )
        self._thread.start()

    async def stop(self) -> None:
        """End the thread. What it has not predicted yet is dropped, and nothing is received any
        more."""
        self._is_stopping = True
        self._inbox.put(Stop())
        if self._thread is not None:
            await asyncio.to_thread(self._thread.join, STOP_TIMEOUT_S)
            if self._thread.is_alive():
                log.warning("the prediction of lengths goes on: it did not stop in time")

    @property
    def is_serving(self) -> bool:
        """Whether predictions can arrive. False before the start and after the thread's end."""
        return not self._is_stopping and self._thread is not None and self._thread.is_alive()

    def submit(self, request: LengthRequest, receive: Receive) -> None:
        """Ask for a prediction, without waiting. The event loop calls `receive` with it, or never:
        where nothing is known of the request, or predicting fails."""
        if self.is_serving:
            self._inbox.put(Asked(request=request, receive=receive))

    def learn(self, finished: FinishedOutputs) -> None:
        """Let the predictor learn from a request that is over, without waiting."""
        if self.is_serving:
            self._inbox.put(finished)

    # ------------------------------------------------------------ in the thread

    def _work(self, load: Load | None) -> None:
        try:
            self._try("the stored runs", lambda: self._learn(load() if load else ()))
            while not self._is_stopping:
                batch = collect_batch(
                    self._get,
                    time.monotonic,
                    max_wait_s=self._max_wait_s,
                    max_batch=self._max_batch,
                )
                self._try("a run that ended", partial(self._learn, batch.finished))
                self._try("requests", partial(self._predict, batch.asked))
        except BaseException as error:  # the thread ends with it either way
            _report("the prediction of lengths ended", error)

    def _get(self, timeout_s: float | None) -> Item:
        return self._inbox.get(timeout=timeout_s)

    def _try(self, what: str, act: Callable[[], None]) -> None:
        """Act. An error is logged, unless it is the same as the last one."""
        try:
            act()
        except Exception as error:
            failure = f"{what}: {type(error).__name__}: {error}"
            if failure != self._failure:
                _report(f"no lengths are predicted from {what}", error)
            self._failure = failure

    def _learn(self, finished: Iterable[FinishedOutputs]) -> None:
        for one in finished:
            if self._is_stopping:
                return
            self._predictor.learn(one)

    def _predict(self, asked: list[Asked]) -> None:
        if not asked or self._is_stopping:
            return
        found = self._predictor.predict([one.request for one in asked])
        for one, distribution in zip(asked, found, strict=True):
            if distribution is not None:
                self._send(one.receive, distribution)

    def _send(self, receive: Receive, distribution: LengthDistribution) -> None:
        assert self._loop is not None, "the thread starts with a loop"
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._deliver, receive, distribution)

    # ------------------------------------------------------------ on the event loop

    def _deliver(self, receive: Receive, distribution: LengthDistribution) -> None:
        if not self._is_stopping:
            receive(distribution)


def _report(what: str, error: BaseException) -> None:
    log.warning(
        "%s, so requests count as long as their max_tokens: %s: %s",
        what,
        type(error).__name__,
        error,
    )
