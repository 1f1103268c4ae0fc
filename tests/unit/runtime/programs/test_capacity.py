"""What is known of the room of two started engines."""

from __future__ import annotations

import asyncio

import pytest

from flashedge.runtime.programs.capacity import measure_capacity
from flashedge.scheduling.programs.admission import Capacity
from scripts.lab.sim.clock import run_virtual
from tests.support.rollout_rig import LinearCurve
from tests.support.runtime_rig import sim_engines


def measure(*, is_assumed: bool) -> Capacity:
    async def scenario() -> Capacity:
        engines = sim_engines()
        await asyncio.sleep(0)
        return await measure_capacity(
            engines.generator,
            engines.verifier,
            LinearCurve(sequence_s=0.001),
            max_running=8,
            max_sequences=64,
            is_shared=False,
            is_assumed=is_assumed,
        )

    return run_virtual(scenario())


def test_the_room_of_two_engines() -> None:
    found = measure(is_assumed=False)
    assert found.step_s is not None
    assert found.step_s(10) == pytest.approx(0.02)
    assert found.useful_sequences > 1
    assert found.kv_tokens > 0


def test_an_assumed_speed_is_marked_as_such() -> None:
    assert measure(is_assumed=True) != measure(is_assumed=False)
    assert measure(is_assumed=True).is_assumed
