"""Waiting out an engine's failures: how often, what comes out, and that a cancel wins."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from flashedge.errors import ContextOverflow, EngineDead, GenerationFailed
from flashedge.runtime.drive.retry import retry_after_restart

DEAD = EngineDead("it died")
FAILED = GenerationFailed("it failed")
TOO_LONG = ContextOverflow("too long")
INNOCENT = EngineDead("another one killed it")
INNOCENT.is_suspect = False


class Engine:
    """Comes back `away_s` after it is waited for; `given_up` says that it does not."""

    def __init__(self, away_s: float = 1.0, *, given_up: bool = False) -> None:
        self.away_s, self.given_up, self.waits = away_s, given_up, 0
        self.suspect_lock = asyncio.Lock()

    async def wait_ready(self, timeout_s: float) -> None:
        self.waits += 1
        await asyncio.sleep(self.away_s)
        if self.given_up:
            raise EngineDead("given up")


def failing(*errors: Exception) -> Callable[[], Any]:
    left = list(errors)

    async def work() -> int:
        if left:
            raise left.pop(0)
        return len(errors) + 1

    return work


async def outcome(engine: Any, *errors: Exception) -> tuple[int, list[float]]:
    """Times of work, and the seconds of each wait."""
    waited: list[float] = []
    done = await retry_after_restart(engine, failing(*errors), waited.append)
    return done, [round(seconds, 9) for seconds in waited]


@pytest.mark.parametrize(
    ("away_s", "errors", "waited"),
    [
        (1.0, (), []),
        (2.5, (DEAD,), [2.55]),
        (1.0, (DEAD,) * 3, [1.05, 1.5, 3.0]),
        (1.0, (FAILED, FAILED), []),
        (1.0, (FAILED, DEAD), [1.5]),
        (1.0, (INNOCENT,) * 100, [1.05, 1.5] + [3.0] * 98),  # it was in none of the steps
        (1.0, (DEAD, INNOCENT, DEAD, INNOCENT, DEAD), [1.05, 1.5, 3.0, 3.0, 3.0]),
    ],
)
async def test_work_is_done_again_after_restarts_and_failures(
    away_s: float, errors: tuple[Exception, ...], waited: list[float]
) -> None:
    engine = Engine(away_s)
    assert await outcome(engine, *errors) == (len(errors) + 1, waited)
    assert engine.waits == len(waited)


async def test_a_dead_engine_that_still_looks_ready_is_waited_for() -> None:
    """It says ready at once, and refuses, until its watch tells it; then it is waited for."""
    engine, told_s, back_s = Engine(0.0), 0.02, 1.0
    clock = asyncio.get_running_loop().time

    async def wait_ready(timeout_s: float) -> None:
        if clock() >= told_s:
            await asyncio.sleep(back_s)

    async def work() -> float:
        if clock() < back_s:
            raise DEAD
        return clock()

    engine.wait_ready = wait_ready  # type: ignore[method-assign]
    assert await retry_after_restart(engine, work, lambda waited_s: None) == pytest.approx(1.05)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("errors", "raised", "waits"),
    [
        ((FAILED,) * 3, FAILED, 0),
        ((DEAD, DEAD, FAILED), FAILED, 2),
        ((DEAD, FAILED, FAILED), FAILED, 1),
        ((DEAD,) * 4, DEAD, 3),
        ((DEAD, INNOCENT, DEAD, INNOCENT, DEAD, DEAD), DEAD, 5),
        ((TOO_LONG,), TOO_LONG, 0),
    ],
)
async def test_what_is_not_repeated_is_raised(
    errors: tuple[Exception, ...], raised: Exception, waits: int
) -> None:
    """The third failure, the fourth death in its own steps, a wrong request at once."""
    engine = Engine()
    with pytest.raises(type(raised)) as caught:
        await outcome(engine, *errors)
    assert (caught.value, engine.waits) == (raised, waits)
    given_up = Engine(given_up=True)
    with pytest.raises(EngineDead, match="given up"):
        await outcome(given_up, DEAD)
    assert given_up.waits == 1


class SharedEngine(Engine):
    """Computes requests together in steps of a second. A step with a culprit ends the engine."""

    def __init__(self, culprits: set[int]) -> None:
        super().__init__()
        self._culprits = culprits
        self._step: dict[int, asyncio.Future[None]] = {}
        self.steps: list[set[int]] = []

    async def compute(self, request: int) -> int:
        if not self._step:
            asyncio.get_running_loop().call_later(1.0, self._end_step)
        done = self._step[request] = asyncio.get_running_loop().create_future()
        await done
        return request

    def _end_step(self) -> None:
        step, self._step = self._step, {}
        self.steps.append(set(step))
        for done in step.values():
            if self._culprits & set(step):
                done.set_exception(EngineDead("a step ended it"))
            else:
                done.set_result(None)


@pytest.mark.parametrize("culprits", [{3}, {0, 19}])
async def test_a_request_that_ends_the_engine_each_time_fails_alone(culprits: set[int]) -> None:
    engine = SharedEngine(culprits)

    async def ask(request: int) -> int:
        work = lambda: engine.compute(request)  # noqa: E731
        return await retry_after_restart(engine, work, lambda waited_s: None)  # type: ignore[arg-type]

    ends = await asyncio.gather(*map(ask, range(20)), return_exceptions=True)
    ends = [None if isinstance(end, EngineDead) else end for end in ends]
    assert ends == [None if i in culprits else i for i in range(20)]
    assert [len(step) for step in engine.steps[:2]] == [20, 20]
    assert all(len(step) == 1 for step in engine.steps[2:])


@pytest.mark.parametrize("error", [DEAD, FAILED])
async def test_cancel_wins_over_the_engines_error(error: Exception) -> None:
    """An engine may answer a cancel with an error of its own: nothing is done again then."""
    engine, begun = Engine(), 0

    async def work() -> None:
        nonlocal begun
        begun += 1
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            raise error from None

    task = asyncio.create_task(retry_after_restart(engine, work, lambda waited_s: None))  # type: ignore[arg-type]
    await asyncio.sleep(1)
    task.cancel()
    await asyncio.wait({task})
    assert task.cancelled()
    assert (begun, engine.waits) == (1, 0)
