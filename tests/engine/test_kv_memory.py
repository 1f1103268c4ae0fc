"""KV memory of the real engines: given back, mapped in granules as on a card.

Memory that is not mapped can't be touched: a step that did so would end the engine's process.
FLASHEDGE_KV_STEPS sets the number of random steps.
"""

import os
from collections.abc import AsyncIterator

import psutil
import pytest_asyncio

from flashedge.engine.base import Generator, Verifier
from flashedge.engine.vllm.generator import VllmGenerator
from flashedge.engine.vllm.pair import VllmPair
from flashedge.types import Problem
from tests.engine.conftest import START_BYTES
from tests.support.engine_rig import ask_apart, drawn, generate_all, kept_budgets, settle, squeezed
from tests.support.kv_machine import Machine, walk

MIB = 1 << 20
STEPS = int(os.environ.get("FLASHEDGE_KV_STEPS", "100"))


def resident_bytes(engine: Generator | Verifier) -> int:
    return int(psutil.Process(engine.health().pid).memory_info().rss)


async def test_a_smaller_quota_returns_memory_to_the_system(
    generator: VllmGenerator, problem: Problem
) -> None:
    """All that the reserved blocks held, but a page at the ends of each contiguous part."""
    view = await generator.view()
    assert generator.health().kv_memory == "os"
    requests = ask_apart(generator, problem, 16, 40)
    first = drawn(await generate_all(generator, requests))
    cached_bytes = 16 * 600 // view.block_tokens * view.block_bytes
    before = resident_bytes(generator)
    async with squeezed(generator):
        small = (await generator.view()).quota_blocks * view.block_bytes
        freed = before - resident_bytes(generator)
        assert freed > 0.8 * (cached_bytes - small) > 20 * MIB
        assert drawn(await generate_all(generator, requests)) == first
        assert resident_bytes(generator) < before - 0.7 * (cached_bytes - small)
    assert drawn(await generate_all(generator, requests)) == first
    await settle(generator)


async def test_random_steps_leave_nothing(pair: VllmPair, problem: Problem) -> None:
    async with kept_budgets(pair.generator, pair.verifier):
        await walk(Machine(pair.generator, pair.verifier, problem, seed=7), STEPS)


# ---------------------------------------------------------------- mapped in granules


async def test_random_steps_leave_nothing_in_mapped_memory(
    mapped_pair: VllmPair, problem: Problem
) -> None:
    async with kept_budgets(mapped_pair.generator, mapped_pair.verifier):
        await walk(Machine(mapped_pair.generator, mapped_pair.verifier, problem, seed=7), STEPS)


@pytest_asyncio.fixture(loop_scope="session")
async def mapped(mapped_pair: VllmPair) -> AsyncIterator[VllmGenerator]:
    """It starts with 24 MiB and has room for 96."""
    yield mapped_pair.generator
    await mapped_pair.generator.budget(START_BYTES["generator"])


async def test_an_engine_starts_with_its_share_and_grows(
    mapped: VllmGenerator, generator: VllmGenerator, problem: Problem
) -> None:
    requests = ask_apart(mapped, problem, 16, 40, max_tokens=40)
    expected = drawn(await generate_all(generator, requests))
    view = await mapped.view()
    assert 23 * MIB < view.quota_blocks * view.block_bytes <= 24 * MIB
    began = resident_bytes(mapped)
    assert drawn(await generate_all(mapped, requests)) == expected
    assert await mapped.budget(96 * MIB) == view.blocks_total * view.block_bytes
    assert drawn(await generate_all(mapped, requests)) == expected
    grown = resident_bytes(mapped)
    cached_bytes = 16 * 600 // view.block_tokens * view.block_bytes
    assert grown - began > 0.8 * cached_bytes > 28 * MIB
    await mapped.budget(8 * MIB)
    assert grown - resident_bytes(mapped) > 0.8 * (cached_bytes - 8 * MIB)
    assert drawn(await generate_all(mapped, requests)) == expected
    await settle(mapped)
