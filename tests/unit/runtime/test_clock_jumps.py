"""The system's clock is set forward or back by a day while runs are under way.

Durations, the queue, the idle clock and the order of runs are kept by other means; what a run
records as its time of creation and end is what the clock said.
"""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from flashedge.runtime.records.retention import DAY_S
from tests.support.runtime_rig import BEAM
from tests.support.service_rig import Rig, Serve, ended, log_of

JUMPS = (DAY_S, -DAY_S, 400 * DAY_S)


@dataclass
class Clock:
    ahead_s: float = 0.0
    _real: Callable[[], float] = time.time

    def __call__(self) -> float:
        return self._real() + self.ahead_s


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(time, "time", made)
    return made


@pytest.mark.parametrize("jump_s", JUMPS)
async def test_runs_go_on(
    serve: Serve, clock: Clock, jump_s: float, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    rig = await serve(keep_alive_s=100, keep_runs_days=0.5, queue_limit=10)
    service = rig.service
    before = service.submit(BEAM)
    assert await ended(before) == "finished"
    running, waiting = service.submit(BEAM), service.submit(BEAM)
    async for _ in running.events():
        break  # it has started
    clock.ahead_s = jump_s
    cancelled = service.submit(BEAM)
    cancelled.cancel("the test cancels it")
    assert await ended(cancelled) == "cancelled"
    for run in (running, waiting):
        assert await ended(run) == "finished"
        timing = (await run.result())["timing"]
        assert all(0 <= seconds < 60 for seconds in timing.values()), timing
        assert len(await log_of(run)) > 3
    told = [float(s) for s in re.findall(r"(?:waited|finished:|after) (-?[\d.]+) s", caplog.text)]
    assert len(told) >= 6
    assert all(0 <= seconds < 60 for seconds in told), caplog.text

    assert 0 <= service.idle.idle_s < 60
    assert not service.should_unload, "nobody has been idle for a day"

    newest_first = [cancelled.id, waiting.id, running.id, before.id]
    assert [run["id"] for run in await service.runs()] == newest_first
    assert [run["id"] for run in await service.runs(before=waiting.id)] == newest_first[2:]
    service._retention.remove_old()
    assert [run["id"] for run in await service.runs()] == newest_first, "none is half a day old"
    await rig.assert_idle()


async def test_a_daemon_that_starts_later_trusts_the_clock(tmp_path: Path, clock: Clock) -> None:
    rig = Rig(tmp_path, keep_runs_days=2)
    await rig.service.start()
    run = rig.service.submit(BEAM)
    assert await ended(run) == "finished"
    await rig.service.stop()
    clock.ahead_s = 7 * DAY_S
    later = Rig(tmp_path, keep_runs_days=2).service
    later._retention.remove_old()
    assert await later.runs() == []
    await later.stop()
