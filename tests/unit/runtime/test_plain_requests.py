"""Requests outside any run: how many may be open, and what the metrics learn of them."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from functools import partial

import pytest
from prometheus_client import generate_latest

from flashedge.config import load_config
from flashedge.engine.http_requests import MAX_CHOICES, PlainAsk, PlainRequests
from flashedge.errors import QueueFull, RequestError
from flashedge.runtime.metrics import Metrics
from flashedge.runtime.plain_requests import watch_request
from flashedge.runtime.programs.scheduler import PairScheduler


async def ignore() -> None: ...


def make_ask(choices: int) -> PlainAsk:
    return PlainAsk(program="one", choices=choices, max_tokens=64)


class Rig:
    def __init__(self) -> None:
        self.metrics = Metrics()
        config = load_config({"scheduling_policy": "fcfs"}, environ={})
        scheduler = PairScheduler("bundled", config, lambda keys: ignore())
        self.plain = PlainRequests(partial(watch_request, self.metrics, lambda pair: scheduler))

    def read(self, name: str) -> float:
        lines = generate_latest(self.metrics.registry).decode().splitlines()
        return sum(float(line.rsplit(" ", 1)[1]) for line in lines if line.startswith(name))


async def test_stopping_aborts_what_is_open_and_waits_for_its_end() -> None:
    rig = Rig()
    told, ended = asyncio.Event(), []

    async def abort() -> None:
        told.set()

    async def request() -> None:
        with rig.plain.open(make_ask(1), abort):
            await told.wait()
            assert rig.plain.is_stopping
        ended.append(True)

    asked = [asyncio.create_task(request()) for _ in range(3)]
    await asyncio.sleep(0)
    assert not rig.plain.is_stopping
    await rig.plain.stop()
    assert ended == [True] * 3
    await asyncio.gather(*asked)


async def test_stopping_does_not_wait_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("flashedge.engine.http_requests.STOP_TIMEOUT_S", 0.01)
    rig = Rig()
    with rig.plain.open(make_ask(1), ignore):
        await rig.plain.stop()
        assert rig.plain._open.total() == 1


def test_too_many_choices_are_refused() -> None:
    rig = Rig()
    with pytest.raises(RequestError, match="at most 256"):
        rig.plain.check_admission("", MAX_CHOICES + 1)
    with rig.plain.open(make_ask(MAX_CHOICES - 1), ignore):
        rig.plain.check_admission("another pair", MAX_CHOICES)
        rig.plain.check_admission("", 1)
        with (
            pytest.raises(QueueFull, match="255 completions and scores are open"),
            rig.plain.open(make_ask(2), ignore),
        ):
            pass
    assert rig.plain._open.total() == 0


@pytest.mark.parametrize(
    ("finishes", "error", "told"),
    [
        (("stop",), None, "stop"),
        (("length",), None, "length"),
        (("stop", "length"), None, "length"),
        (("stop",), RuntimeError(), "stop"),
        ((), RuntimeError(), "error"),
        ((), GeneratorExit(), "cancelled"),
    ],
)
def test_metrics_learn_how_a_request_ended(
    finishes: tuple[str, ...], error: BaseException | None, told: str
) -> None:
    rig = Rig()
    ask = make_ask(max(1, len(finishes)))
    with suppress(RuntimeError, GeneratorExit), rig.plain.open(ask, ignore) as follow:
        follow(7, 2, ())
        follow(7, 3, finishes)
        if error is not None:
            raise error
    assert rig.read(f'flashedge:chats_total{{finished_reason="{told}"}}') == 1
    assert rig.read("flashedge:chat_tokens_total") == 5
    assert rig.read('flashedge:time_to_first_token_seconds_count{kind="chat"}') == 1
