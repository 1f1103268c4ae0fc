"""What a restarted engine gets of the budget and the offload state of its predecessor."""

from typing import Any

import pytest

from flashedge.engine.vllm.engine import VllmEngine
from flashedge.errors import EngineDead
from tests.unit.engine.vllm.process.test_restarts import OPTIONS

MIB = 1 << 20


class FakeProcess:
    """Grants at most `free` bytes, and refuses more by keeping what it had."""

    def __init__(self, free: int) -> None:
        self.free, self.quota = free, 8 * MIB
        self.is_dead = False
        self.calls: list[tuple[str, Any]] = []

    async def budget(self, kv_bytes: int) -> int:
        await self.call("budget", kv_bytes)
        self.quota = kv_bytes if kv_bytes <= self.free else self.quota
        return self.quota

    async def call(self, method: str, *args: Any) -> int:
        if self.is_dead:
            raise EngineDead("it is dead")
        self.calls.append((method, args[0] if args else None))
        return 0


@pytest.fixture
def engine() -> VllmEngine:
    engine = VllmEngine(OPTIONS)
    engine.process = FakeProcess(free=16 * MIB)  # type: ignore[assignment]
    return engine


async def restart(engine: VllmEngine) -> FakeProcess:
    fresh = FakeProcess(free=64 * MIB)
    engine.process = fresh  # type: ignore[assignment]
    await engine._configure_restarted()
    return fresh


async def test_the_next_process_has_the_granted_budget_or_no_memory(engine: VllmEngine) -> None:
    assert await engine.budget(12 * MIB) == 12 * MIB
    assert await engine.budget(48 * MIB) == 12 * MIB, "it is refused"
    assert engine.process.start_limit_bytes == 12 * MIB
    assert (await restart(engine)).calls == [("budget", 12 * MIB)]
    await engine.offload()
    assert engine.process.start_limit_bytes == 0
    assert (await restart(engine)).calls == [("offload", False), ("budget", 12 * MIB)]
    await engine.restore()
    assert engine.process.start_limit_bytes == 12 * MIB


async def test_a_dead_engines_budget_is_for_the_next_process(engine: VllmEngine) -> None:
    await engine.budget(12 * MIB)
    engine.process.is_dead = True  # type: ignore[attr-defined]
    with pytest.raises(EngineDead):
        await engine.budget(6 * MIB)
    assert engine.process.start_limit_bytes == 6 * MIB
    assert (await restart(engine)).calls == [("budget", 6 * MIB)]


async def test_the_next_process_gets_the_programs_order(engine: VllmEngine) -> None:
    for order in (["b", "a"], ["a", "b"]):
        await engine.rank_programs(order)
        assert (await restart(engine)).calls == [("rank_programs", order)]
        engine.process.is_dead = True  # type: ignore[attr-defined]
