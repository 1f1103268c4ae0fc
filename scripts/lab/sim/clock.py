"""Virtual time for asyncio: the loop's clock jumps to the next timer when nothing is ready.

Hours of simulated decoding pass in milliseconds, in an order that only the timers decide. The idea
is Trio's autojump clock. The loop's `time()` returns virtual seconds; `asyncio.sleep`, `wait_for`
and `timeout` follow it unchanged. Real I/O and threads still work, but take no virtual time.
"""

import asyncio
import selectors
from collections.abc import Callable, Coroutine
from concurrent.futures import Executor
from typing import Any, TypeVar, TypeVarTuple

T = TypeVar("T")
Ts = TypeVarTuple("Ts")

DEADLOCK_S = 5.0


class VirtualTimeDeadlock(RuntimeError):
    """Every task waits, and no timer or I/O can wake one."""


class _JumpingSelector(selectors.DefaultSelector):
    """A selector that moves the clock forward instead of sleeping."""

    now_s = 0.0
    threads = 0
    """Calls in threads and processes whose results are awaited."""

    def __init__(self, deadlock_s: float) -> None:
        super().__init__()
        self._deadlock_s = deadlock_s

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        ready = super().select(0)
        if ready or timeout == 0:
            return ready
        if self.threads or timeout is None:
            ready = super().select(self._deadlock_s)
        if not ready and timeout is not None:
            self.now_s += max(timeout, 0.0)
            return []
        if not ready:  # no timer is pending: only a thread or real I/O could go on
            raise VirtualTimeDeadlock(
                f"virtual time stands still at {self.now_s:.6f} s: all tasks wait, no timer is set"
            )
        return ready


class VirtualTimeLoop(asyncio.SelectorEventLoop):
    """An event loop on virtual time, which starts at 0.0 s.

    deadlock_s: real seconds to wait for I/O when no timer is set, before VirtualTimeDeadlock; with
    a timer, to wait for a thread before the clock jumps all the same.
    """

    def __init__(self, deadlock_s: float = DEADLOCK_S) -> None:
        self._jumping = _JumpingSelector(deadlock_s)
        super().__init__(self._jumping)

    def run_in_executor(
        self, executor: Executor | None, func: Callable[[*Ts], T], *args: *Ts
    ) -> asyncio.Future[T]:
        """As long as the call takes, the clock stands still."""
        result = super().run_in_executor(executor, func, *args)
        self._jumping.threads += 1
        result.add_done_callback(self._count_call)
        return result

    def _count_call(self, result: asyncio.Future[Any]) -> None:
        self._jumping.threads -= 1

    def time(self) -> float:
        """Virtual seconds since the loop was created."""
        return self._jumping.now_s


class VirtualTimePolicy(asyncio.DefaultEventLoopPolicy):
    """Creates loops on virtual time, for test runners that take a policy."""

    def new_event_loop(self) -> asyncio.AbstractEventLoop:
        return VirtualTimeLoop()


def run_virtual(main: Coroutine[Any, Any, T], *, deadlock_s: float = DEADLOCK_S) -> T:
    """Run `main` to its end on a fresh virtual clock, like `asyncio.run`.

    Raises VirtualTimeDeadlock when nothing can wake it.
    """
    with asyncio.Runner(loop_factory=lambda: VirtualTimeLoop(deadlock_s)) as runner:
        return runner.run(main)
