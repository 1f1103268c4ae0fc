"""Predictions on the event loop: what is read first, what arrives, what a failure leaves alone."""

import asyncio
import logging
import threading
from math import exp
from statistics import median
from typing import Any

import pytest

from flashedge.config import Config, load_config
from flashedge.errors import StoreError
from flashedge.runtime.lengths.predictions import Predictions
from flashedge.runtime.records.store import RunStore
from flashedge.scheduling.lengths.distribution import LogT
from flashedge.scheduling.lengths.outputs import FinishedOutputs, LengthRequest, OutputLengths
from tests.support.length_rig import make_run, store_runs

NEW = LengthRequest(
    pair="bundled", kind="self_consistency", text="user: new", prompt_tokens=30, max_tokens=99
)


@pytest.fixture
def event_loop_policy() -> asyncio.AbstractEventLoopPolicy:
    """Threads know nothing of virtual time."""
    return asyncio.DefaultEventLoopPolicy()


class Inbox:
    def __init__(self, predictions: Predictions) -> None:
        self.predictions = predictions
        self.arrived: asyncio.Queue[LogT] = asyncio.Queue()

    def ask(self, request: LengthRequest = NEW) -> None:
        def receive(found: Any) -> None:
            assert threading.current_thread() is threading.main_thread()
            self.arrived.put_nowait(found)

        self.predictions.submit(request, receive)

    async def get(self) -> LogT:
        async with asyncio.timeout(20):
            return await self.arrived.get()


def finish(tokens: int) -> FinishedOutputs:
    return FinishedOutputs(request=NEW, lengths=OutputLengths.from_outputs([tokens] * 4))


async def open_empty(predictions: Predictions) -> None:
    predictions.submit(NEW, lambda found: None)
    async with asyncio.timeout(20):
        await asyncio.gather(*predictions._predictors.values())


async def test_the_stored_runs_are_learned_first(config: Config, store: RunStore) -> None:
    store_runs(store, 30)
    inbox = Inbox(Predictions(config, store))
    inbox.ask()
    inbox.ask()
    found = [await inbox.get(), await inbox.get()]
    assert found[0] == found[1]
    lengths = [tokens for i in range(30) for tokens in make_run(i, outputs=2).lengths.tokens]
    assert exp(found[0].mu) == pytest.approx(median(lengths), rel=0.2)
    await inbox.predictions.stop()


async def test_what_ended_counts_for_what_is_asked_next(config: Config, store: RunStore) -> None:
    inbox = Inbox(Predictions(config, store))
    await open_empty(inbox.predictions)
    inbox.ask()  # nothing is known
    inbox.predictions.learn(finish(50))
    inbox.ask()
    inbox.predictions.learn(finish(900))
    inbox.ask()
    assert inbox.arrived.empty()  # not within submit
    first, second = await inbox.get(), await inbox.get()
    assert first.mu < second.mu
    assert inbox.arrived.empty()
    await inbox.predictions.stop()


async def test_unreadable_runs_are_said_and_leave_requests_alone(
    config: Config, store: RunStore, monkeypatch: pytest.MonkeyPatch, caplog: Any
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise StoreError("the disk is gone")

    monkeypatch.setattr(store, "list_runs", fail)
    inbox = Inbox(Predictions(config, store))
    with caplog.at_level(logging.WARNING):
        await open_empty(inbox.predictions)
    (line,) = [record.getMessage() for record in caplog.records]
    assert "stored runs of bundled: StoreError: the disk is gone" in line
    inbox.predictions.learn(finish(50))
    inbox.ask()
    assert await inbox.get()
    await inbox.predictions.stop()


async def test_nothing_is_received_after_the_stop(config: Config, store: RunStore) -> None:
    store_runs(store, 3)
    reading = Inbox(Predictions(config, store))
    reading.ask()
    await reading.predictions.stop()  # while the stored runs are read
    reading.predictions.learn(finish(50))
    known = Inbox(Predictions(config, store))
    known.ask()
    await known.get()
    known.ask()
    await known.predictions.stop()
    await asyncio.sleep(0)
    assert reading.arrived.empty()
    assert known.arrived.empty()


def test_off_predicts_nothing(config: Config, store: RunStore) -> None:
    assert config.scheduling_lengths == "history"
    environ = {"FLASHEDGE_HOME": str(config.state_dir.parent)}
    off = load_config({"scheduling_lengths": "off"}, environ=environ)
    Predictions(off, store).submit(NEW, lambda found: None)  # without an event loop
