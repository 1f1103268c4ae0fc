"""The service's health, its start, and the chats that it lets in."""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from dataclasses import replace
from pathlib import Path

import pytest

from flashedge.engine.base import Health
from flashedge.engine.sim.clock import VirtualTimePolicy
from flashedge.engine.sim.pair import Faults
from flashedge.errors import ContextOverflow, EngineDead, EngineError, QueueFull
from flashedge.runtime.chat import ChatDelta, ChatSpec
from flashedge.runtime.service import MAX_CHATS
from flashedge.types import Message, Sampling
from tests.support.runtime_rig import BEAM, both
from tests.support.service_rig import SELF_TEST, Rig, ended

CHAT = ChatSpec(messages=(Message(role="user", content="hi"),), sampling=Sampling(), seed=3)


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
        await anext(service.chat(CHAT))
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


# ---------------------------------------------------------------- chats


async def chat(rig: Rig, spec: ChatSpec) -> list[ChatDelta]:
    async with aclosing(rig.service.chat(spec)) as deltas:
        return [delta async for delta in deltas]


def choice(deltas: list[ChatDelta], index: int) -> str:
    return "".join(delta.text for delta in deltas if delta.index == index)


async def test_a_chat_streams_its_choices(tmp_path: Path) -> None:
    """Interleaved, each ended once, the first as if it were alone."""
    rig = Rig(tmp_path)
    await rig.service.start()
    alone = await chat(rig, CHAT)
    four = await chat(rig, replace(CHAT, n=4))
    assert choice(four, 0) == choice(alone, 0)
    assert len({choice(four, i) for i in range(4)}) == 4
    assert sorted(d.index for d in four if d.finish) == [0, 1, 2, 3]
    for index in range(4):
        mine = [delta.finish for delta in four if delta.index == index]
        assert mine[:-1] == [None] * (len(mine) - 1)
    assert {delta.index for delta in four[:8]} == {0, 1, 2, 3}
    drawn = [choice(await chat(rig, replace(CHAT, seed=None)), 0) for _ in range(2)]
    assert drawn[0] != drawn[1]
    await rig.assert_idle()
    await rig.service.stop()


@pytest.mark.parametrize("n", [1, 5])
async def test_a_chat_that_is_closed_leaves_nothing(tmp_path: Path, n: int) -> None:
    rig = Rig(tmp_path)
    await rig.service.start()
    for taken in range(10):
        deltas = rig.service.chat(replace(CHAT, n=n, seed=taken))
        for _ in range(taken):
            await anext(deltas)
        await deltas.aclose()
        await rig.assert_idle()
    await rig.service.stop()


async def test_a_chat_fails_when_its_engine_dies(tmp_path: Path) -> None:
    rig = Rig(tmp_path, generator=Faults(die_after_steps=frozenset({3})))
    await rig.service.start()
    with pytest.raises(EngineDead):
        await chat(rig, replace(CHAT, n=3))
    await rig.assert_idle()
    await asyncio.sleep(5)
    assert len(await chat(rig, CHAT)) > 1
    await rig.service.stop()


async def test_wrong_chats_are_refused(tmp_path: Path) -> None:
    rig = Rig(tmp_path)
    with pytest.raises(EngineDead, match="still loading"):
        await chat(rig, CHAT)
    await rig.service.start()
    long = replace(CHAT, messages=(Message(role="user", content="w1 " * 300),))
    with pytest.raises(ContextOverflow, match="holds 256"):
        await chat(rig, long)
    half = replace(CHAT, n=MAX_CHATS // 2)
    open_chats = [rig.service.chat(half) for _ in range(2)]
    for deltas in open_chats:
        await anext(deltas)
    with pytest.raises(QueueFull) as e:
        await chat(rig, CHAT)
    assert e.value.retry_after_s > 0
    await open_chats[0].aclose()
    assert await chat(rig, CHAT)
    await open_chats[1].aclose()
    await rig.assert_idle()
    await rig.service.stop()
