"""Following a run through lost connections, without a network."""

from __future__ import annotations

from collections.abc import AsyncGenerator

import pytest

from flashedge.client.follow import Reconnection, RetryPolicy, cancel_quietly, follow, retry
from flashedge.client.protocol import explain_missing_end
from flashedge.errors import (
    DaemonError,
    EngineDead,
    FlashEdgeError,
    NotFound,
    QueueFull,
    RunInterrupted,
)
from flashedge.events import Event, NodeScored, RunCancelled

SCORED = NodeScored(node=1, scores=(0.5,), score=0.5)
OVER = RunCancelled(reason="requested")
STORY: list[tuple[int, Event]] = [*((i, SCORED) for i in range(1, 6)), (6, OVER)]
QUICK = RetryPolicy(first_s=0.0, max_retries=2)


class Source:
    """Serves STORY in connections that end with the scripted errors, after some events each."""

    def __init__(self, *script: tuple[int, FlashEdgeError | None]) -> None:
        self.script = list(script)
        self.starts: list[int] = []

    async def events(
        self, run: str, after: int = 0
    ) -> AsyncGenerator[tuple[tuple[int, Event], ...]]:
        self.starts.append(after)
        count, error = self.script.pop(0)
        for item in STORY[after : after + count]:
            yield (item,)
        if error is not None:
            raise error


async def numbers(source: Source, policy: RetryPolicy = QUICK) -> list[int]:
    return [n async for piece in follow(source, "r", policy) for n, _ in piece]


# ---------------------------------------------------------------- decisions


def test_pauses_double_up_to_the_longest() -> None:
    policy = RetryPolicy(first_s=0.5, longest_s=8.0)
    assert [policy.pause_s(n) for n in range(1, 8)] == [0.5, 1, 2, 4, 8, 8, 8]
    assert policy.pause_s(10**6) == 8


def test_an_event_resets_the_failures() -> None:
    connection = Reconnection(RetryPolicy(first_s=1.0, max_retries=2), after=4)
    assert connection.last == 4
    assert [connection.fail() for _ in range(3)] == [1, 2, None], "it gives up"
    connection.receive(7)
    assert connection.last == 7
    assert [connection.fail() for _ in range(3)] == [1, 2, None]


def test_an_open_run_can_be_followed_again_and_a_closed_one_was_interrupted() -> None:
    for status in ("queued", "running"):
        assert type(explain_missing_end("r", status)) is DaemonError
    for closed in ("interrupted", "cancelled", None):
        assert type(explain_missing_end("r", closed)) is RunInterrupted


# ---------------------------------------------------------------- following


async def test_a_lost_connection_resumes_after_the_last_event() -> None:
    source = Source(
        (2, DaemonError("cut")), (0, DaemonError("away")), (3, DaemonError("cut")), (1, None)
    )
    assert await numbers(source) == [1, 2, 3, 4, 5, 6]
    assert source.starts == [0, 2, 2, 5]


async def test_a_daemon_that_stays_away_ends_the_following() -> None:
    source = Source((2, DaemonError("cut")), *[(0, DaemonError("away"))] * 3)
    with pytest.raises(DaemonError, match="went away during run r: away"):
        await numbers(source)
    assert source.starts == [0, 2, 2]


@pytest.mark.parametrize("error", [RunInterrupted("stopped"), NotFound("no run"), EngineDead("x")])
async def test_errors_of_the_run_are_not_retried(error: FlashEdgeError) -> None:
    source = Source((1, error))
    with pytest.raises(type(error)) as caught:
        await numbers(source)
    assert caught.value is error
    assert source.starts == [0]


# ---------------------------------------------------------------- calls


async def call_with(*script: object, policy: RetryPolicy = QUICK) -> tuple[object, int]:
    """The result of a retried call that ends as scripted, and how many losses it reported."""
    left, losses = list(script), [0]

    async def call() -> object:
        result = left.pop(0)
        if isinstance(result, Exception):
            raise result
        return result

    def count() -> None:
        losses[0] += 1

    return await retry(call, policy, count), losses[0]


async def test_a_call_waits_for_a_full_queue_and_a_lost_daemon() -> None:
    full = QueueFull("full", retry_after_s=0.0)
    script = [full] * 4 + [DaemonError("away"), full, EngineDead("died"), 7]
    assert await call_with(*script) == (7, 2)


async def test_a_call_gives_up_on_a_daemon_that_stays_away_and_when_it_is_refused() -> None:
    with pytest.raises(DaemonError, match="third"):
        await call_with(DaemonError("first"), DaemonError("second"), DaemonError("third"), 7)
    with pytest.raises(NotFound):
        await call_with(NotFound("no run"), 7)


async def test_a_run_is_cancelled_if_the_daemon_answers() -> None:
    class Daemon:
        def __init__(self) -> None:
            self.cancelled: list[str] = []

        async def cancel(self, run: str) -> dict[str, str]:
            self.cancelled.append(run)
            raise DaemonError("away")

    daemon = Daemon()
    await cancel_quietly(daemon, "r")
    assert daemon.cancelled == ["r"]
