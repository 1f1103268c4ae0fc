"""KV memory that is mapped in large granules, as on a card, on the CPU's engines.

Memory that is not mapped can't be touched: a step that did so would end the engine's process.
"""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from flashedge.engine.vllm.generator import VllmGenerator
from flashedge.engine.vllm.pair import VllmPair
from flashedge.types import Problem
from tests.engine.conftest import START_BYTES
from tests.engine.test_kv_memory import resident_bytes
from tests.support.engine_rig import ask, drawn, generate_all, settle

pytestmark = pytest.mark.asyncio(loop_scope="session")
MIB = 1 << 20


@pytest_asyncio.fixture(loop_scope="session")
async def mapped(mapped_pair: VllmPair) -> AsyncIterator[VllmGenerator]:
    """It starts with 24 MiB and has room for 96."""
    yield mapped_pair.generator
    await mapped_pair.generator.budget(START_BYTES["generator"])


async def test_an_engine_starts_with_its_share_and_grows(
    mapped: VllmGenerator, generator: VllmGenerator, problem: Problem
) -> None:
    requests = [
        ask(mapped, problem, seed=seed, after=(40 + seed,) * 600, max_tokens=40)
        for seed in range(16)
    ]
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


async def test_the_last_blocks_of_the_pool_are_reserved(
    mapped: VllmGenerator, problem: Problem
) -> None:
    """So whole granules become free, whatever was used last. Prefixes in the first blocks stay."""
    await mapped.budget(96 * MIB)
    request = ask(mapped, problem, seed=1, after=(9,) * 600, max_tokens=4)
    (first,) = drawn(await generate_all(mapped, [request]))
    fill = [ask(mapped, problem, seed=s, after=(60 + s,) * 600, max_tokens=2) for s in range(24)]
    await generate_all(mapped, fill)
    filled = resident_bytes(mapped)
    view = await mapped.view()
    assert await mapped.budget(24 * MIB) == 24 * MIB // view.block_bytes * view.block_bytes
    cached_bytes = 24 * 600 // view.block_tokens * view.block_bytes
    assert filled - resident_bytes(mapped) > 0.8 * (cached_bytes - 24 * MIB)
    assert drawn(await generate_all(mapped, [request])) == [first]
    await settle(mapped)
