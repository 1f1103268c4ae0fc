"""The service's health, its start, and the protocols that it lets in."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path
from unittest.mock import AsyncMock

import pytest

from flashedge.engine.base import Health
from flashedge.engine.sim.clock import VirtualTimePolicy
from flashedge.engine.sim.pair import Faults
from flashedge.errors import EngineDead, EngineError, RequestError
from tests.support.runtime_rig import BEAM, both
from tests.support.service_rig import SELF_TEST, Rig, ended


@pytest.fixture
def event_loop_policy() -> VirtualTimePolicy:
    return VirtualTimePolicy()


# ---------------------------------------------------------------- health


async def test_health_says_what_starting_engines_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig = Rig(tmp_path)
    loading = Health(state="starting", stage="loading the weights (1 of 2)")
    compiling = Health(state="starting", stage="compiling the model")
    now = [loading, compiling]
    monkeypatch.setattr(rig.service._served._engines, "health", lambda: tuple(now))
    assert rig.service.health().detail == (
        "generator: loading the weights (1 of 2); verifier: compiling the model"
    )
    now[:] = [Health(state="ready"), compiling]
    assert rig.service.health().detail == "verifier: compiling the model"
    now[:] = [Health(state="ready"), Health(state="ready")]
    assert (rig.service.health().state, rig.service.health().detail) == (
        "starting",
        "testing the engines",
    )
    now[:] = [Health(state="starting"), Health(state="starting")]
    assert rig.service.health().detail is None


async def test_health_follows_the_engines_from_start_to_stop(tmp_path: Path) -> None:
    faults = Faults(restart_s=5.0)
    rig = Rig(tmp_path, generator=faults, verifier=Faults(restart_s=None))
    service, (generator, verifier) = rig.service, both(rig.engines)
    starting = asyncio.create_task(service.start())
    await asyncio.sleep(0.5)
    assert service.health().state == "starting"
    with pytest.raises(EngineDead, match="still loading"):
        service.submit(BEAM)
    await starting
    assert service.health().state == "ready"
    assert service.health().self_test == SELF_TEST

    generator.kill("a test")
    assert (service.health().state, service.health().detail) == ("degraded", "generator: a test")
    run = service.submit(BEAM)
    await asyncio.sleep(4.9)
    assert service.health().state == "degraded"
    assert await ended(run) == "finished"
    assert (service.health().state, service.health().generator.restarts) == ("ready", 1)

    verifier.kill("for good")
    assert service.health().state == "failed"
    with pytest.raises(EngineDead, match="the engines are down"):
        service.submit(BEAM)
    with pytest.raises(EngineDead, match="the engines are down"):
        _ = service.protocols
    await service.stop()


async def test_health_says_what_is_wrong_and_what_comes_next(tmp_path: Path) -> None:
    rig = Rig(tmp_path)
    service, (generator, verifier) = rig.service, both(rig.engines)
    await service.start()
    service._served._device.faults = ("the card reported Xid 31",)
    assert service.health().detail == "the card reported Xid 31"
    generator._health = Health(state="dead", detail="it hung", attempt=3, retry_in_s=11.6)
    verifier._health = Health(state="ready", detail="it died once", notice="its batch is smaller")
    assert (service.health().state, service.health().detail) == (
        "degraded",
        "generator: it hung; restart 3 in 12 s; verifier: its batch is smaller; "
        "the card reported Xid 31",
    )
    generator._health = replace(generator._health, retry_in_s=None)
    assert "it hung; restart 3 is under way" in (service.health().detail or "")
    await service.stop()


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
    health = rig.service.health()
    assert health.state == "failed"
    assert told in (health.detail or "")
    with pytest.raises(EngineDead, match="the engines are down"):
        rig.service.submit(BEAM)
    await rig.service.stop()
    assert rig.pair.stopped


async def test_views_show_the_load_of_both_engines(tmp_path: Path) -> None:
    rig = Rig(tmp_path)
    await rig.service.start()
    views = await rig.service.views()
    assert {name: view.blocks_used for name, view in views.items()} == {
        "generator": 0,
        "verifier": 0,
    }
    await rig.service.stop()


# ---------------------------------------------------------------- requests outside any run


async def test_protocols_are_served_once_the_engines_are_ready(tmp_path: Path) -> None:
    rig = Rig(tmp_path)
    with pytest.raises(EngineDead, match="still loading"):
        _ = rig.service.protocols
    await rig.service.start()
    assert rig.service.protocols is not None
    await rig.service.stop()


async def test_a_pair_without_protocols_says_so(tmp_path: Path) -> None:
    rig = Rig(tmp_path)
    await rig.service.start()
    rig.service._served._protocols = None
    with pytest.raises(RequestError, match="simulated") as caught:
        _ = rig.service.protocols
    assert "bundled:beam-4" in (caught.value.hint or "")
    await rig.service.stop()


async def test_an_open_request_keeps_the_daemon_busy(tmp_path: Path) -> None:
    rig = Rig(tmp_path)
    await rig.service.start()
    rig.service._busy_at -= 60
    assert rig.service.idle_s >= 60
    with rig.service._plain.open(1, AsyncMock()):
        assert rig.service.idle_s < 60
    assert rig.service.idle_s < 60
    await rig.service.stop()
