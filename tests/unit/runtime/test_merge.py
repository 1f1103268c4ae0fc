"""Several streams as one: everything arrives, the first error ends all, closing closes all."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator

import pytest

from flashedge.engine.sim.clock import VirtualTimePolicy
from flashedge.errors import EngineDead
from flashedge.runtime.merge import merge_streams


@pytest.fixture
def event_loop_policy() -> VirtualTimePolicy:
    return VirtualTimePolicy()


class Streams:
    """Streams of (name, number) pairs, one every `every_s`; knows which are closed."""

    def __init__(self) -> None:
        self.closed: list[str] = []

    async def of(
        self, name: str, count: int, every_s: float, error: Exception | None = None
    ) -> AsyncGenerator[tuple[str, int]]:
        try:
            for number in range(count):
                await asyncio.sleep(every_s)
                yield name, number
            if error is not None:
                raise error
        finally:
            self.closed.append(name)


def no_other_task() -> bool:
    return asyncio.all_tasks() == {asyncio.current_task()}


async def test_items_are_yielded_as_they_arrive() -> None:
    streams = Streams()
    items = merge_streams(
        [streams.of("a", 2, 3.0), streams.of("b", 3, 2.5), streams.of("c", 0, 1.0)]
    )
    found = [item async for item in items]
    assert found == [("b", 0), ("a", 0), ("b", 1), ("a", 1), ("b", 2)]
    assert sorted(streams.closed) == ["a", "b", "c"]
    assert no_other_task()


async def test_one_stream_and_none_are_merged() -> None:
    streams = Streams()
    assert [i async for i in merge_streams([streams.of("a", 3, 1.0)])] == [
        ("a", 0),
        ("a", 1),
        ("a", 2),
    ]
    assert [i async for i in merge_streams([])] == []
    assert streams.closed == ["a"]


@pytest.mark.parametrize("others", [0, 1, 5])
async def test_the_first_error_ends_all(others: int) -> None:
    streams = Streams()
    found = []
    bad = streams.of("bad", 2, 1.0, EngineDead("gone"))
    items = merge_streams([*(streams.of(f"s{i}", 100, 0.9) for i in range(others)), bad])
    with pytest.raises(EngineDead):  # noqa: PT012
        async for item in items:
            found.append(item)
    assert [item for item in found if item[0] == "bad"] == [("bad", 0), ("bad", 1)]
    assert len(found) == 2 * (others + 1)
    assert len(streams.closed) == others + 1
    assert no_other_task()


async def test_two_errors_at_once_are_one() -> None:
    streams = Streams()
    both = [streams.of(name, 0, 1.0, EngineDead(name)) for name in "ab"]
    with pytest.raises(EngineDead, match="a"):
        async for _ in merge_streams(both):
            pass
    assert no_other_task()


@pytest.mark.parametrize("count", [1, 4])
async def test_closing_closes_all(count: int) -> None:
    streams = Streams()
    items = merge_streams([streams.of(f"s{i}", 9, 1.0) for i in range(count)])
    await anext(items)
    await items.aclose()
    assert len(streams.closed) == count
    assert no_other_task()


@pytest.mark.parametrize("count", [1, 4])
async def test_cancelling_the_reader_closes_all(count: int) -> None:
    streams = Streams()

    async def read() -> None:
        async for _ in merge_streams([streams.of(f"s{i}", 9, 1.0) for i in range(count)]):
            pass

    task = asyncio.create_task(read())
    await asyncio.sleep(2.5)
    task.cancel()
    await asyncio.wait({task})
    assert task.cancelled()
    assert len(streams.closed) == count
    assert no_other_task()


async def test_a_slow_reader_loses_nothing() -> None:
    streams = Streams()
    found = []
    async for item in merge_streams([streams.of("a", 20, 0.01), streams.of("b", 20, 0.01)]):
        found.append(item)
        await asyncio.sleep(1.0)
    assert sorted(found) == [(name, i) for name in "ab" for i in range(20)]
