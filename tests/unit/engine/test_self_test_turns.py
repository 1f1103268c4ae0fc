"""When the self-test works: while nobody else does, and for so long in all."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from flashedge.engine.self_test_turns import Turns, never_wait
from flashedge.scheduling.kv.split import EngineRole
from scripts.lab.sim.clock import VirtualTimePolicy


@pytest.fixture
def event_loop_policy() -> VirtualTimePolicy:
    return VirtualTimePolicy()


async def test_a_turn_waits_for_users_and_waiting_takes_none_of_its_time() -> None:
    clock = asyncio.get_running_loop().time
    open_turns: list[tuple[EngineRole, float]] = []

    @contextmanager
    def count(role: EngineRole) -> Iterator[None]:
        open_turns.append((role, clock()))
        yield

    async def is_free() -> bool:
        return clock() >= 1000

    turns = Turns(is_free, count, left_s=10)
    async with turns.take(EngineRole.VERIFIER):
        assert 1000 <= clock() <= 1001
        await asyncio.sleep(4)
    ((role, began),) = open_turns
    assert role == EngineRole.VERIFIER
    assert began >= 1000
    assert turns.left_s == pytest.approx(6)


async def test_the_time_of_all_turns_together_is_limited() -> None:
    turns = Turns(never_wait, left_s=10)
    async with turns.take(EngineRole.VERIFIER):
        await asyncio.sleep(7)
    with pytest.raises(TimeoutError):
        async with turns.take(EngineRole.VERIFIER):
            await asyncio.sleep(7)
    assert turns.left_s == 0
    with pytest.raises(TimeoutError):
        async with turns.take(EngineRole.VERIFIER):
            await asyncio.sleep(0.01)
