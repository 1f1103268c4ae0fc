"""The back-off of restarts."""

from __future__ import annotations

from flashedge.engine.vllm.process.restarts import BACKOFF_S, STABLE_S, RestartRow


def test_restarts_wait_longer_and_longer_and_never_end() -> None:
    row = RestartRow()
    row.begin(0.0)
    waits = [row.plan(0.0) for _ in range(1000)]
    assert waits[: len(BACKOFF_S)] == list(BACKOFF_S)
    assert waits == sorted(waits)
    assert set(waits[len(BACKOFF_S) :]) == {60.0}
    assert row.attempt == 1000


def test_a_process_that_served_for_long_begins_a_new_row() -> None:
    row = RestartRow()
    for _ in range(3):
        row.begin(STABLE_S)
        row.plan(0.0)
    assert row.attempt == 3
    row.begin(STABLE_S + 1)
    assert row.plan(0.0) == BACKOFF_S[0]
    assert row.attempt == 1


def test_the_count_down_ends_when_the_restart_begins() -> None:
    row = RestartRow()
    assert row.count_down(5.0) is None
    row.plan(100.0)
    row.plan(100.0)
    row.plan(100.0)
    assert row.count_down(101.0) == 2.0
    assert row.count_down(110.0) == 0.0
    row.start()
    assert row.count_down(101.0) is None
