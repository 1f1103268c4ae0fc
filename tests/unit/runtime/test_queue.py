"""Who runs and who waits: first come, first served, and nobody lost."""

from __future__ import annotations

import asyncio
import random

import pytest

from flashedge.errors import QueueFull
from flashedge.runtime.queue import RunQueue


def first_come(max_running: int, limit: int) -> RunQueue:
    return RunQueue(lambda waiting: waiting, lambda run, running: len(running) < max_running, limit)


def place(queue: RunQueue) -> str:
    """Who runs / who waits."""
    return f"{''.join(queue.running)}/{''.join(queue.waiting)}"


async def hold(queue: RunQueue, name: str, done: asyncio.Event, began: list[str]) -> None:
    async with queue.wait_turn(name):
        began.append(name)
        await done.wait()


async def test_the_first_runs_start_and_the_others_wait_in_order() -> None:
    queue = first_come(2, 3)
    for name in "abcde":
        queue.reserve(name)
    assert place(queue) == "ab/cde"
    queue.leave("a")
    assert place(queue) == "bc/de"
    queue.leave("d")
    assert place(queue) == "bc/e"


async def test_a_full_queue_refuses() -> None:
    queue = first_come(1, 2)
    for name in "abc":
        queue.reserve(name)
    with pytest.raises(QueueFull, match="1 runs are running and 2 are waiting") as e:
        queue.reserve("d")
    assert e.value.retry_after_s > 0
    assert queue.sizes == (2, 1)
    queue.leave("b")
    queue.reserve("d")
    assert place(queue) == "a/cd"


async def test_a_run_starts_without_a_queue_if_there_is_room() -> None:
    queue = first_come(1, 0)
    queue.reserve("a")
    with pytest.raises(QueueFull):
        queue.reserve("b")
    queue.leave("a")
    queue.reserve("b")
    assert place(queue) == "b/"


async def test_an_error_admits_the_next_run() -> None:
    queue = first_come(1, 1)
    queue.reserve("a")
    with pytest.raises(ZeroDivisionError):
        async with queue.wait_turn("a"):
            raise ZeroDivisionError
    assert place(queue) == "/"


async def test_a_run_is_cancelled_in_the_tick_of_its_admission() -> None:
    """b's turn has come, but it never gets to know: its ticket goes on to c."""
    queue, done, began = first_come(1, 9), asyncio.Event(), list[str]()
    for name in "abc":
        queue.reserve(name)
    tasks = {name: asyncio.create_task(hold(queue, name, done, began)) for name in "bc"}
    await asyncio.sleep(1)
    queue.leave("a")
    assert place(queue) == "b/c"
    tasks["b"].cancel()
    await asyncio.sleep(1)
    assert began == ["c"]
    assert tasks["b"].cancelled()
    done.set()
    await tasks["c"]
    assert queue.sizes == (0, 0)


@pytest.mark.parametrize("seed", range(5))
async def test_any_mixture_of_ends_and_cancels_admits_all(seed: int) -> None:
    draw = random.Random(seed)
    queue, began, at_once = first_come(3, 100), list[int](), 0

    async def one(number: int) -> None:
        nonlocal at_once
        async with queue.wait_turn(str(number)):
            began.append(number)
            at_once += 1
            assert at_once <= 3
            try:
                await asyncio.sleep(draw.random())
            finally:
                at_once -= 1

    tasks = []
    for number in range(60):
        queue.reserve(str(number))
        tasks.append(asyncio.create_task(one(number)))
        await asyncio.sleep(draw.random() * 0.2)
        if draw.random() < 0.5:
            task = draw.choice(tasks)
            if task is not tasks[-1]:  # a task without a step yet never enters its turn
                task.cancel()
    await asyncio.wait(tasks)
    assert began == sorted(began)
    assert len(began) >= 30
    assert (queue.sizes, at_once) == ((0, 0), 0)
