"""The service's health, its start, its KV memory, its idle time, and a system clock that jumps."""

import asyncio
import logging
import re
import time
from dataclasses import replace
from math import exp, log
from pathlib import Path
from random import Random
from statistics import mean, median, pstdev
from types import SimpleNamespace
from typing import Any

import pytest

from flashedge.engine.base import Health
from flashedge.errors import EngineDead, EngineError
from flashedge.events import KvSplitChanged
from flashedge.runtime import served_pair
from flashedge.runtime.programs.scheduler import KEPT_S
from flashedge.runtime.records.retention import DAY_S
from flashedge.runtime.service import Service
from flashedge.scheduling.programs import estimates
from flashedge.scheduling.programs.estimates import RunEstimate
from scripts.lab.sim.pair import Faults, SimulatedGenerator
from tests.support.length_rig import LogNormal
from tests.support.runtime_rig import BEAM, BEST, ROOM, both
from tests.support.service_rig import SELF_TEST, Rig, Serve, ended, log_of

# ---------------------------------------------------------------- health


async def assert_refuses(service: Service, match: str) -> None:
    with pytest.raises(EngineDead, match=match):
        service.submit(BEAM)
    with pytest.raises(EngineDead, match=match):
        async with service.use_pair("bundled"):
            pass


def tell(service: Service) -> tuple[str, str | None]:
    health = service.health()
    return health.state, health.detail


async def test_health_tells_how_they_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rig, begun = Rig(tmp_path), Health(state="starting")
    loading = replace(begun, stage="loading the weights (1 of 2)")
    compiling, ready = replace(begun, stage="compiling the model"), Health(state="ready")
    for engines, detail in (
        ((loading, ready), "generator: loading the weights (1 of 2)"),
        ((ready, compiling), "verifier: compiling the model"),
        ((loading, compiling), f"generator: {loading.stage}; verifier: {compiling.stage}"),
        ((ready, ready), "preparing to serve"),
        ((begun, begun), None),
    ):
        monkeypatch.setattr(rig.served._engines, "health", lambda engines=engines: engines)
        assert tell(rig.service) == ("starting", detail)


async def test_health_follows_the_engines_from_start_to_stop(tmp_path: Path) -> None:
    faults = Faults(restart_s=5.0)
    rig = Rig(tmp_path, generator=faults, verifier=Faults(restart_s=None))
    service, (generator, verifier) = rig.service, both(rig.engines)
    starting = asyncio.create_task(service.start())
    await asyncio.sleep(0.5)
    assert service.health().state == "starting"
    await assert_refuses(service, "still loading")
    await starting
    async with service.use_pair("bundled") as pair:
        assert pair.protocols is not None
    assert (service.health().state, service.health().self_test) == ("ready", SELF_TEST)

    generator.kill("a test")
    assert tell(service) == ("degraded", "generator: a test")
    run = service.submit(BEAM)
    await asyncio.sleep(4.9)
    assert service.health().state == "degraded"
    assert await ended(run) == "finished"
    assert (service.health().state, service.health().generator.restarts) == ("ready", 1)

    verifier.kill("for good")
    assert service.health().state == "failed"
    await assert_refuses(service, "the engines are down")
    await service.stop()


async def test_health_says_what_is_wrong_and_what_comes_next(rig: Rig) -> None:
    service, (generator, verifier) = rig.service, both(rig.engines)
    rig.served._device.faults = ("the card reported Xid 31",)
    assert service.health().detail == "the card reported Xid 31"
    generator._health = Health(state="dead", detail="it hung", attempt=3, retry_in_s=11.6)
    verifier._health = Health(state="ready", detail="it died once", notice="its batch is smaller")
    notes = "verifier: its batch is smaller; the card reported Xid 31"
    assert tell(service) == ("degraded", f"generator: it hung; restart 3 in 12 s; {notes}")
    generator._health = replace(generator._health, retry_in_s=None)
    assert "it hung; restart 3 is under way" in (service.health().detail or "")


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (EngineError("the generator did not start", hint="read the logs"), "read the logs"),
        (MemoryError("no room"), "MemoryError: no room"),
    ],
)
async def test_a_failed_start_is_reported(tmp_path: Path, error: Exception, told: str) -> None:
    rig = Rig(tmp_path, error=error)
    with pytest.raises(type(error)):
        await rig.service.start()
    state, detail = tell(rig.service)
    assert state == "failed"
    assert told in (detail or "")
    await assert_refuses(rig.service, "the engines are down")
    await rig.service.stop()
    assert rig.pair.stopped


# ---------------------------------------------------------------- requests outside any run


async def test_the_engines_are_due_after_what_the_last_request_asked_for(serve: Serve) -> None:
    service = (await serve(keep_alive_s=100)).service
    for asked, idle_s, due in (
        (None, 101, True),
        (None, 99, False),  # the request in between has started again
        (1000.0, 101, False),
        (0.0, 1, True),
        (-1.0, 1e9, False),
    ):
        service.idle.keep_alive(asked)
        async with service.use_pair("bundled"):
            assert not service.should_unload
        service.idle.busy_at -= idle_s
        assert service.should_unload is due, (asked, idle_s)


async def test_without_a_loaded_pair_the_next_request_loads_one(serve: Serve) -> None:
    service = (await serve(load=False)).service
    service.idle.busy_at -= 1e9
    assert (tell(service)[0], service.loaded, service.should_unload) == ("unloaded", (), False)
    (state,) = service.pairs().values()
    assert (state.health.state, await state.read_views()) == ("unloaded", {})
    async with service.use_pair("bundled"):
        run = service.submit(BEAM)
    assert (service.health().state, service.loaded) == ("ready", ("bundled",))
    service.idle.keep_alive(0)
    assert not service.should_unload, "a run is open"
    assert await ended(run) == "finished"
    await asyncio.sleep(0.1)
    service.idle.busy_at -= 1
    assert service.should_unload


# ---------------------------------------------------------------- KV memory


async def solved(rig: Rig, spec: Any) -> tuple[dict[str, Any], list[KvSplitChanged]]:
    run = rig.service.submit(spec)
    result = await run.result()
    events = [event for _, event in await log_of(run)]
    return result, [event for event in events if isinstance(event, KvSplitChanged)]


async def test_the_record_says_what_the_split_used(serve: Serve) -> None:
    rig = await serve(config=ROOM)
    result, changes = await solved(rig, BEAM)
    assert "roofline" in result["kv"]["curves"]
    assert changes[0].curves == result["kv"]["curves"]
    assert result["kv"]["generator_bytes"] == changes[-1].generator_bytes
    stock, changes = await solved(rig, replace(BEAM, baseline=True))
    assert changes[-1].generator_bytes == changes[-1].verifier_bytes
    assert stock["tree"] == result["tree"]


@pytest.mark.parametrize("why", ["switched off", "the device keeps it"])
async def test_without_a_split_the_budgets_stay(
    serve: Serve, why: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if why == "the device keeps it":
        kept = Health(state="ready", kv_memory="kept")
        monkeypatch.setattr(SimulatedGenerator, "health", lambda self: kept)
    shared, measure = list[bool](), served_pair.measure_capacity

    def record(*args: Any, is_shared: bool, **limits: Any) -> Any:
        shared.append(is_shared)
        return measure(*args, is_shared=is_shared, **limits)

    monkeypatch.setattr(served_pair, "measure_capacity", record)
    rig = await serve(config=ROOM, features={"kv_split": why != "switched off"})
    before = await rig.served.views()
    assert shared == [False], "memory that can't move is not room for both"
    result, changes = await solved(rig, BEAM)
    assert (result["kv"], changes) == ({"curves": None}, [])
    after = await rig.served.views()
    assert [v.quota_blocks for v in after.values()] == [v.quota_blocks for v in before.values()]


# ---------------------------------------------------------------- a clock that jumps


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    made, real = SimpleNamespace(ahead_s=0.0), time.time
    monkeypatch.setattr(time, "time", lambda: real() + made.ahead_s)
    return made


@pytest.mark.parametrize("jump_s", [DAY_S, -DAY_S, 400 * DAY_S])
async def test_runs_go_on(
    serve: Serve, clock: SimpleNamespace, jump_s: float, caplog: pytest.LogCaptureFixture
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
    assert all(0 <= seconds < 60 for seconds in [*told, service.idle.idle_s]), caplog.text
    assert not service.should_unload, "nobody has been idle for a day"
    newest_first = [cancelled.id, waiting.id, running.id, before.id]
    assert [run["id"] for run in await service.runs()] == newest_first
    assert [run["id"] for run in await service.runs(before=waiting.id)] == newest_first[2:]
    service._retention.remove_old()
    assert [run["id"] for run in await service.runs()] == newest_first, "none is half a day old"
    await rig.assert_idle()


async def test_a_daemon_that_starts_later_trusts_the_clock(
    tmp_path: Path, clock: SimpleNamespace
) -> None:
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


# ---------------------------------------------------------------- when runs are expected to start


async def measure_lengths(service: Service, monkeypatch: pytest.MonkeyPatch) -> LogNormal:
    monkeypatch.setattr(estimates, "LEAST_S", 0.05)  # a simulated search takes 0.1 s
    result = await service.submit(replace(BEST, n=32, seed=99)).result()
    await asyncio.sleep(0.01)
    logs = [log(len(path["token_ids"])) for path in result["completions"]]
    return LogNormal(mu=mean(logs), sigma=pstdev(logs))


@pytest.mark.parametrize("max_running", [1, 4])
async def test_runs_start_about_when_they_are_expected_to(
    serve: Serve, monkeypatch: pytest.MonkeyPatch, max_running: int
) -> None:
    """Half of the estimates are within a quarter of the time that is left."""
    rig = await serve(max_running=max_running, queue_limit=100)
    clock = asyncio.get_running_loop().time
    rig.service.scheduler("bundled")._clock = clock  # virtual, like the searches
    lengths = await measure_lengths(rig.service, monkeypatch)
    draw = Random(3)
    runs = []
    for seed in range(24):
        spec = replace(draw.choice([BEAM, BEST]), n=draw.choice([4, 8, 16, 32]), seed=seed)
        runs.append(rig.service.submit(spec))
    for run in runs:
        rig.service.scheduler("bundled").set_lengths(run.id, lengths)
    expected: list[tuple[str, float, float]] = []
    started: dict[str, float] = {}
    while len(started) < len(runs):
        for run in runs:
            if run.status != "queued":
                started.setdefault(run.id, clock())
            elif (start_s := run.estimate.starts_in_s) is not None:
                expected.append((run.id, clock(), start_s))
        await asyncio.sleep(0.01)
    left = [(start_s, started[run] - at_s) for run, at_s, start_s in expected]
    errors = [abs(start_s - real_s) / real_s for start_s, real_s in left if real_s > 0.05]
    assert len(errors) > 100
    assert median(errors) < 0.25


async def test_an_estimate_is_at_most_a_moment_old(
    serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig = await serve(queue_limit=9)
    lengths = await measure_lengths(rig.service, monkeypatch)
    first, second, third = (rig.service.submit(replace(BEAM, n=64, seed=seed)) for seed in range(3))
    assert [run.estimate.position for run in (first, second, third)] == [None, 0, 1]
    assert second.estimate.median_tokens is None
    rig.service.scheduler("bundled").set_lengths(second.id, lengths)
    await asyncio.sleep(KEPT_S)
    assert second.estimate.median_tokens == pytest.approx(exp(lengths.mu), abs=1)
    second.cancel("enough")
    await asyncio.sleep(0)
    assert third.estimate.position == 0, "a change of the queue shows at once"
    await ended(first)
    assert first.estimate == RunEstimate()
