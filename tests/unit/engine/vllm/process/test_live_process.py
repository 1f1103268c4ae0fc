"""When an engine process counts as hung, and what is left of its client when it ends."""

import asyncio
from dataclasses import replace
from types import SimpleNamespace
from typing import Any
from unittest.mock import AsyncMock, Mock

import psutil
import pytest

from flashedge.engine.vllm.process.live_process import LiveProcess, watch_heart
from tests.unit.engine.vllm.process.test_restarts import OPTIONS


async def test_sockets_are_closed_where_the_process_is_gone_and_other_errors_are_told() -> None:
    close, shutdown = Mock(), Mock(side_effect=[psutil.NoSuchProcess(4242), ValueError("no")])
    process = LiveProcess(OPTIONS, on_end=lambda: None)
    client: Any = Mock(shutdown=shutdown, output_handler=None, engine_core=Mock(resources=close))
    process.llm = client
    await process.shut_down()
    close.assert_called_once_with()
    assert process.llm is None
    process.llm = client
    with pytest.raises(ValueError, match="no"):
        await process.shut_down()


HANG_S = 60.0


class Process:
    """A process and its record. It answers until `hangs_at`, each time after `answer_s`, and works
    on until `works_until`."""

    tokens = 0
    """Those of the present step."""

    def __init__(self, *, hangs_at: float, answer_s: float = 0.0, works_until: float = 0.0) -> None:
        self.hangs_at, self.answer_s, self.works_until = hangs_at, answer_s, works_until
        self.asked = 0

    async def beat(self) -> int:
        clock = asyncio.get_running_loop().time
        self.asked += 1
        await asyncio.sleep(self.answer_s)
        if clock() >= self.hangs_at:
            await asyncio.Event().wait()
        return 1

    @property
    def progress(self) -> int:
        return int(min(asyncio.get_running_loop().time(), self.works_until))


async def watch(process: Any, hang_s: float = HANG_S) -> tuple[float, float]:
    """After how many seconds it counts as hung, and how many of them it was silent."""
    options = replace(OPTIONS, hang_s=hang_s, slowest_token_s=1.0)
    began = asyncio.get_running_loop().time()
    silent_s = await watch_heart(process.beat, process, options)
    return asyncio.get_running_loop().time() - began, silent_s


@pytest.mark.parametrize(
    ("process", "hang_s", "least", "most"),
    [
        (Process(hangs_at=1000), HANG_S, 1000 + HANG_S, 1010 + HANG_S),
        (Process(hangs_at=1000, answer_s=HANG_S - 10), HANG_S, 1000, 1e9),
        (Process(hangs_at=1e9, answer_s=1e8), HANG_S, HANG_S, HANG_S + 5),
        (Process(hangs_at=100, works_until=900), HANG_S, 900 + HANG_S, 910 + HANG_S),
        (Process(hangs_at=10), 0.5, 10.5, 10.7),
    ],
    ids=["idle", "late answers", "a step beyond the deadline", "only progress", "short deadline"],
)
async def test_a_hung_process_is_found_in_time(
    process: Process, hang_s: float, least: float, most: float
) -> None:
    found_s, silent_s = await watch(process, hang_s)
    assert least <= found_s <= most
    assert silent_s >= hang_s


async def test_a_step_of_many_tokens_may_take_longer() -> None:
    process = Process(hangs_at=0)
    process.tokens = 600
    found_s, silent_s = await watch(process)
    assert 600 <= silent_s <= found_s <= 610
    assert process.asked == 1, "one question at a time"


async def test_a_process_that_refuses_gives_no_sign() -> None:
    refuse = AsyncMock(side_effect=RuntimeError("dead"))
    _, silent_s = await watch(SimpleNamespace(beat=refuse, progress=0, tokens=0))
    assert silent_s >= HANG_S


async def test_time_without_the_daemon_does_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    loop, away = asyncio.get_running_loop(), 0.0
    clock = loop.time
    monkeypatch.setattr(loop, "time", lambda: clock() + away)
    process = Process(hangs_at=1e9, answer_s=20.0)
    watching = asyncio.create_task(watch(process))
    await asyncio.sleep(12)
    away = 3600.0
    await asyncio.sleep(100)
    assert not watching.done()
    watching.cancel()
