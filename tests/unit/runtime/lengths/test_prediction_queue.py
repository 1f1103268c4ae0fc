"""The prediction thread: batches, order, failures and a clean stop. Nothing here is timed."""

from __future__ import annotations

import asyncio
import logging
import queue
import threading
from collections.abc import Callable, Sequence

import pytest

from flashedge.runtime.lengths.prediction_queue import (
    MAX_BATCH,
    Asked,
    Item,
    PredictionQueue,
    Stop,
    collect_batch,
)
from flashedge.scheduling.lengths.base import LengthDistribution
from flashedge.scheduling.lengths.families.point import Point
from flashedge.scheduling.lengths.observed import OutputLengths
from flashedge.scheduling.lengths.request import FinishedOutputs, LengthRequest


def request(text: str = "a") -> LengthRequest:
    return LengthRequest(pair="p", text=text, max_tokens=100)


def finished(text: str = "a", tokens: int = 7) -> FinishedOutputs:
    lengths = OutputLengths.from_outputs([tokens])
    return FinishedOutputs(request=request(text), lengths=lengths)


def asked(text: str = "a") -> Asked:
    return Asked(request=request(text), receive=lambda distribution: None)


# ---------------------------------------------------------------- batches, on a made-up clock


class Arrivals:
    """Items that arrive at given seconds, on a clock that only waiting moves."""

    def __init__(self, items: Sequence[tuple[float, Item]]) -> None:
        self.now_s = 0.0
        self.left = list(items)
        self.waits: list[float | None] = []

    def now(self) -> float:
        return self.now_s

    def get(self, timeout_s: float | None) -> Item:
        self.waits.append(timeout_s)
        if not self.left or (timeout_s is not None and self.left[0][0] > self.now_s + timeout_s):
            assert timeout_s is not None, "nothing arrives any more"
            self.now_s += timeout_s
            raise queue.Empty
        at, item = self.left.pop(0)
        self.now_s = max(self.now_s, at)
        return item


def test_a_batch_waits_three_milliseconds_for_more() -> None:
    times = (5.0, 5.001, 5.0029, 5.0031, 9.0)
    arrivals = Arrivals([(at, asked(str(at))) for at in times])
    first = collect_batch(arrivals.get, arrivals.now)
    assert [one.request.text for one in first.asked] == ["5.0", "5.001", "5.0029"]
    assert arrivals.waits[0] is None
    assert arrivals.waits[1] == pytest.approx(0.003)
    assert arrivals.now_s == pytest.approx(5.003)
    second = collect_batch(arrivals.get, arrivals.now)
    assert [one.request.text for one in second.asked] == ["5.0031"]


def test_a_batch_has_at_most_thirty_two_requests() -> None:
    arrivals = Arrivals([(1.0, asked(str(i))) for i in range(70)])
    sizes = [len(collect_batch(arrivals.get, arrivals.now).asked) for _ in range(3)]
    assert sizes == [MAX_BATCH, MAX_BATCH, 6] == [32, 32, 6]


def test_what_ended_waits_for_nobody_and_fills_no_place() -> None:
    arrivals = Arrivals([(1.0, finished()), (2.0, asked()), (2.001, finished()), (2.002, asked())])
    alone = collect_batch(arrivals.get, arrivals.now)
    assert (len(alone.asked), len(alone.finished)) == (0, 1)
    assert arrivals.now_s == 1.0
    mixed = collect_batch(arrivals.get, arrivals.now, max_batch=2)
    assert (len(mixed.asked), len(mixed.finished)) == (2, 1)


def test_a_stop_ends_a_batch_at_once() -> None:
    arrivals = Arrivals([(1.0, asked()), (1.0, Stop()), (1.0, asked())])
    batch = collect_batch(arrivals.get, arrivals.now)
    assert batch.is_last
    assert len(batch.asked) == 1
    assert arrivals.now_s == 1.0


# ---------------------------------------------------------------- the thread


class Recorder:
    """A LengthPredictor that remembers what it was asked, and fails where it is told to."""

    def __init__(self) -> None:
        self.batches: list[list[str]] = []
        self.learned: list[int] = []
        self.threads: set[str] = set()
        self.error: BaseException | None = None
        self.gate = threading.Event()
        self.gate.set()
        self.entered = threading.Event()

    def predict(self, requests: Sequence[LengthRequest]) -> list[LengthDistribution | None]:
        self.entered.set()
        assert self.gate.wait(20)
        self.threads.add(threading.current_thread().name)
        self.batches.append([one.text for one in requests])
        if self.error is not None:
            raise self.error
        return [None if one.text == "unknown" else Point(len(one.text)) for one in requests]

    def learn(self, finished: FinishedOutputs) -> None:
        if self.error is not None:
            raise self.error
        self.learned.append(finished.lengths.tokens[0])

    def explain(self, request: LengthRequest) -> str:
        return "because"


async def wait_until(check: Callable[[], bool]) -> None:
    """Let the thread work until it did something. It takes a few turns of the loop."""
    async with asyncio.timeout(20):
        while True:
            if check():
                return
            await asyncio.sleep(0)


class Inbox:
    """Receives predictions on the event loop."""

    def __init__(self) -> None:
        self.arrived: asyncio.Queue[tuple[str, LengthDistribution]] = asyncio.Queue()
        self.loop = asyncio.get_running_loop()

    def ask(self, predictions: PredictionQueue, text: str) -> None:
        def receive(distribution: LengthDistribution) -> None:
            assert asyncio.get_running_loop() is self.loop
            self.arrived.put_nowait((text, distribution))

        predictions.submit(request(text), receive)

    async def get(self) -> tuple[str, LengthDistribution]:
        async with asyncio.timeout(20):
            return await self.arrived.get()


async def test_predictions_reach_the_event_loop() -> None:
    predictor = Recorder()
    predictions, inbox = PredictionQueue(predictor), Inbox()
    predictions.start()
    assert predictions.is_serving
    for text in ("aa", "unknown", "bbbb"):
        inbox.ask(predictions, text)
    assert [await inbox.get(), await inbox.get()] == [("aa", Point(2)), ("bbbb", Point(4))]
    assert predictor.threads == {"length predictions"}
    await predictions.stop()
    assert inbox.arrived.empty()
    assert not predictions.is_serving


async def test_requests_that_wait_are_predicted_together() -> None:
    predictor = Recorder()
    predictions, inbox = PredictionQueue(predictor), Inbox()
    predictions.start()
    predictor.gate.clear()
    inbox.ask(predictions, "first")
    await wait_until(predictor.entered.is_set)
    for number in range(40):
        inbox.ask(predictions, f"{number}")
    predictor.gate.set()
    for _ in range(41):
        await inbox.get()
    assert sum(map(len, predictor.batches)) == 41
    assert len(predictor.batches) <= 4
    assert max(map(len, predictor.batches)) <= MAX_BATCH
    await predictions.stop()


async def test_it_learns_what_is_stored_before_it_predicts() -> None:
    predictor = Recorder()
    predictions, inbox = PredictionQueue(predictor), Inbox()
    predictions.start(lambda: [finished(tokens=1), finished(tokens=2)])
    predictions.learn(finished(tokens=3))
    inbox.ask(predictions, "a")
    await inbox.get()
    assert predictor.learned == [1, 2, 3]
    await predictions.stop()


async def test_an_error_is_logged_once_and_the_thread_goes_on(
    caplog: pytest.LogCaptureFixture,
) -> None:
    predictor = Recorder()
    predictions, inbox = PredictionQueue(predictor), Inbox()

    def fail() -> list[FinishedOutputs]:
        raise OSError("the disk is gone")

    with caplog.at_level(logging.WARNING):
        predictions.start(fail)
        predictor.error = ValueError("no such weights")
        for text in ("a", "b", "c"):
            inbox.ask(predictions, text)
            await wait_until(lambda wanted=text: [wanted] in predictor.batches)  # type: ignore[misc]
        predictor.error = None
        inbox.ask(predictions, "dd")
        assert await inbox.get() == ("dd", Point(2))
    await predictions.stop()
    lines = [record.getMessage() for record in caplog.records]
    assert len(lines) == 2
    assert "the disk is gone" in lines[0]
    assert "max_tokens: ValueError: no such weights" in lines[1]


async def test_a_dead_thread_leaves_requests_alone(caplog: pytest.LogCaptureFixture) -> None:
    predictor = Recorder()
    predictions, inbox = PredictionQueue(predictor), Inbox()
    with caplog.at_level(logging.WARNING):
        predictions.start()
        predictor.error = SystemExit("gone")
        inbox.ask(predictions, "a")
        await wait_until(lambda: not predictions.is_serving)
        inbox.ask(predictions, "b")
        predictions.learn(finished())
    await predictions.stop()
    assert inbox.arrived.empty()
    assert predictor.batches == [["a"]]
    (line,) = [record.getMessage() for record in caplog.records]
    assert "ended" in line


async def test_nothing_is_received_after_the_stop() -> None:
    predictor = Recorder()
    predictions, inbox = PredictionQueue(predictor), Inbox()
    predictions.start()
    predictor.gate.clear()
    inbox.ask(predictions, "a")
    await wait_until(predictor.entered.is_set)
    inbox.ask(predictions, "b")
    stopping = asyncio.create_task(predictions.stop())
    await asyncio.sleep(0)
    predictor.gate.set()
    await stopping
    await asyncio.sleep(0)
    assert inbox.arrived.empty()
    assert predictor.batches == [["a"]]
    assert not predictions.is_serving


async def test_a_queue_that_never_started_drops_what_it_is_asked() -> None:
    predictions = PredictionQueue(Recorder())
    predictions.submit(request(), lambda distribution: None)
    assert not predictions.is_serving
    await predictions.stop()
