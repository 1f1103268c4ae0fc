"""A smaller quota frees memory of the engine's process and changes no token."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from flashedge.engine.base import Generator, Verifier
from flashedge.engine.vllm.generator import VllmGenerator
from flashedge.types import Problem
from tests.support.engine_rig import ask, drawn, generate_all, settle, squeezed

pytestmark = pytest.mark.asyncio(loop_scope="session")
MIB = 1 << 20


def resident_bytes(engine: Generator | Verifier) -> int:
    return int(psutil.Process(engine.health().pid).memory_info().rss)


async def test_a_smaller_quota_returns_memory_to_the_system(
    generator: VllmGenerator, problem: Problem
) -> None:
    """All that the reserved blocks held, but a page at the ends of each contiguous part."""
    view = await generator.view()
    assert generator.health().kv_memory == "os"
    requests = [
        ask(generator, problem, seed=seed, after=(40 + seed,) * 600, max_tokens=2)
        for seed in range(16)
    ]
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


async def test_kv_offloaded_to_a_file_takes_no_memory(
    generator: VllmGenerator, problem: Problem, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = replace(generator.options, offload_folder=tmp_path, offload_to_file=True)
    monkeypatch.setattr(generator, "options", options)
    requests = [
        ask(generator, problem, seed=seed, after=(70 + seed,) * 600, max_tokens=300)
        for seed in range(16)
    ]
    first = drawn(await generate_all(generator, requests))
    running = asyncio.create_task(generate_all(generator, requests))
    while not (await generator.view()).running:  # noqa: ASYNC110
        await asyncio.sleep(0.001)
    before = resident_bytes(generator)
    saved = await generator.offload()
    held = (await generator.view()).blocks_used
    offloaded = resident_bytes(generator)
    loaded = await generator.restore()  # before any assertion: else the next test would wait
    restored = resident_bytes(generator)
    assert held > 0
    assert saved > 40 * MIB
    assert before - offloaded > 0.8 * saved
    assert loaded == saved
    assert restored - offloaded > 0.8 * saved
    assert drawn(await running) == first
    assert not any(tmp_path.iterdir())  # noqa: ASYNC240  the file has no name
    await settle(generator)
