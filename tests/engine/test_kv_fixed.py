"""An engine whose KV memory is fixed, as is every engine on a card by default."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import replace

import pytest
import pytest_asyncio

from flashedge.engine.vllm.generator import VllmGenerator
from flashedge.types import Problem
from tests.support.engine_rig import ask, drawn, generate_all, settle

pytestmark = pytest.mark.asyncio(loop_scope="session")
MIB = 1 << 20


@pytest_asyncio.fixture(loop_scope="session")
async def fixed(generator: VllmGenerator) -> AsyncIterator[VllmGenerator]:
    options = replace(generator.options, name="fixed", kv_fixed=True, kv_bytes=48 * MIB)
    engine = VllmGenerator(options, generator.codec)
    await engine.start()
    yield engine
    await engine.stop()


async def test_a_fixed_engine_starts_and_draws_the_same_tokens(
    fixed: VllmGenerator, generator: VllmGenerator, problem: Problem
) -> None:
    requests = [
        ask(fixed, problem, seed=seed, after=(40 + seed,) * 200, max_tokens=40) for seed in range(8)
    ]
    expected = drawn(await generate_all(generator, requests))
    assert drawn(await generate_all(fixed, requests)) == expected
    await fixed.budget(24 * MIB)
    view = await fixed.view()
    assert view.quota_blocks * view.block_bytes <= 24 * MIB
    assert drawn(await generate_all(fixed, requests)) == expected
    await fixed.offload(keep=True)
    await fixed.restore()
    assert drawn(await generate_all(fixed, requests)) == expected
    await settle(fixed)
