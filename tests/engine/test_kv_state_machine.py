"""Random steps on the real engines: nothing leaks, and every answer is the same.

FLASHEDGE_KV_STEPS sets the number of steps.
"""

from __future__ import annotations

import os

import pytest

from flashedge.engine.vllm.pair import VllmPair
from flashedge.types import Problem
from tests.support.kv_machine import Machine, walk

pytestmark = pytest.mark.asyncio(loop_scope="session")
STEPS = int(os.environ.get("FLASHEDGE_KV_STEPS", "100"))


async def test_random_steps_leave_nothing(pair: VllmPair, problem: Problem) -> None:
    await walk_and_reset(pair, problem)


async def test_random_steps_leave_nothing_in_mapped_memory(
    mapped_pair: VllmPair, problem: Problem
) -> None:
    await walk_and_reset(mapped_pair, problem)


async def walk_and_reset(pair: VllmPair, problem: Problem) -> None:
    engines = (pair.generator, pair.verifier)
    before = [await engine.view() for engine in engines]
    try:
        await walk(Machine(*engines, problem, seed=7), STEPS)
    finally:
        for engine, view in zip(engines, before, strict=True):
            await engine.restore()
            await engine.budget(view.quota_blocks * view.block_bytes)
