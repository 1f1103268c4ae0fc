"""Virtual time: the clock jumps, and real I/O still works."""

import asyncio
import threading
import time

import pytest

from scripts.lab.sim.clock import VirtualTimeDeadlock, run_virtual


def get_now_s() -> float:
    return asyncio.get_running_loop().time()


def test_hours_pass_in_no_time() -> None:
    async def main() -> float:
        assert get_now_s() == 0.0
        for _ in range(1000):
            await asyncio.sleep(0)  # while anything is ready, time stands still
        assert get_now_s() == 0.0
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(7200):
                await asyncio.Event().wait()
        assert get_now_s() == pytest.approx(7200)
        await asyncio.sleep(1e6)  # longer than one select may last
        return get_now_s() - 7200

    assert run_virtual(main()) == pytest.approx(1e6)


def test_a_deadlock_is_an_error() -> None:
    async def main() -> None:
        await asyncio.Event().wait()

    with pytest.raises(VirtualTimeDeadlock, match="stands still"):
        run_virtual(main(), deadlock_s=0.05)


@pytest.mark.parametrize("timer_s", [None, 0.001, 60.0])
def test_threads_wake_the_loop_and_cost_no_virtual_time(timer_s: float | None) -> None:
    async def main() -> float:
        if timer_s is not None:
            asyncio.get_running_loop().call_later(timer_s, lambda: None)
        await asyncio.to_thread(time.sleep, 0.02)
        return get_now_s()

    assert run_virtual(main()) == 0.0


def test_a_thread_that_waits_for_a_timer_does_not_hang() -> None:
    async def main() -> float:
        rang = threading.Event()
        asyncio.get_running_loop().call_later(60.0, rang.set)
        await asyncio.to_thread(rang.wait)
        return get_now_s()

    assert run_virtual(main(), deadlock_s=0.05) == pytest.approx(60.0)
