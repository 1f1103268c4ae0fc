"""Virtual time for asyncio: the loop's clock jumps to the next timer when nothing is ready.

Hours of simulated decoding pass in milliseconds, in an order that only the timers decide. The idea
is Trio's autojump clock. The loop's `time()` returns virtual seconds; `asyncio.sleep`, `wait_for`
and `timeout` follow it unchanged. Real I/O and threads still work, but take no virtual time.
"""

import asyncio
import selectors
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")

DEADLOCK_S = 5.0


class VirtualTimeDeadlock(RuntimeError):
    """Every task waits, and no timer or I/O can wake one."""


class _JumpingSelector(selectors.DefaultSelector):
    """A selector that moves the clock forward instead of sleeping."""

    now_s = 0.0

    def __init__(self, deadlock_s: float) -> None:
        super().__init__()
        self._deadlock_s = deadlock_s

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        ready = super().select(0)
        if ready or timeout == 0:
            return ready
        if timeout is not None:
            self.now_s += max(timeout, 0.0)
            return []
        # No timer is pending: only a thread or real I/O can go on.
        ready = super().select(self._deadlock_s)
        if not ready:
            raise VirtualTimeDeadlock(
                f"virtual time stands still at {self.now_s:.6f} s: all tasks wait, no timer is set"
            )
        return ready


class VirtualTimeLoop(asyncio.SelectorEventLoop):
    """An event loop on virtual time, which starts at 0.0 s.

    deadlock_s: real seconds to wait for I/O when no timer is set, before VirtualTimeDeadlock.
    """

    def __init__(self, deadlock_s: float = DEADLOCK_S) -> None:
        self._jumping = _JumpingSelector(deadlock_s)
        super().__init__(self._jumping)

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
