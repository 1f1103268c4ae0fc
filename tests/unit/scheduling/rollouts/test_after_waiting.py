"""The gate stays shut for as long again as somebody has waited."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from flashedge.scheduling.rollouts.after_waiting import LONGEST_S, SHORTEST_S, AfterWaiting


def find_opening(waiting: AfterWaiting, from_s: float) -> float:
    """When the gate opens if nobody waits from then on, in tenths of a second."""
    tenths = round(from_s * 10)
    while waiting.note(tenths / 10, waits=False):
        tenths += 1
    return tenths / 10


def wait(waiting: AfterWaiting, from_s: float, to_s: float) -> None:
    for tenths in range(round(from_s * 10), round(to_s * 10) + 1):
        assert waiting.note(tenths / 10, waits=True)


def test_it_is_open_where_nobody_has_waited() -> None:
    assert not AfterWaiting().note(5.0, waits=False)


def test_after_a_moment_it_stays_shut_for_a_second() -> None:
    waiting = AfterWaiting()
    wait(waiting, 10.0, 10.1)
    assert find_opening(waiting, 10.2) == 10.1 + SHORTEST_S


def test_after_twenty_seconds_it_stays_shut_for_twenty_more() -> None:
    waiting = AfterWaiting()
    wait(waiting, 0.0, 20.0)
    assert find_opening(waiting, 20.1) == 40.0


def test_who_waits_before_it_opens_prolongs_the_waiting() -> None:
    waiting = AfterWaiting()
    wait(waiting, 0.0, 10.0)
    wait(waiting, 18.0, 18.0)
    assert find_opening(waiting, 18.1) == 36.0


def test_what_is_long_past_does_not_count() -> None:
    waiting = AfterWaiting()
    wait(waiting, 0.0, 20.0)
    assert find_opening(waiting, 20.1) == 40.0
    wait(waiting, 100.0, 100.0)
    assert find_opening(waiting, 100.1) == 100.0 + SHORTEST_S


def test_a_heavy_load_that_is_over_is_forgotten() -> None:
    waiting = AfterWaiting()
    wait(waiting, 0.0, 500.0)
    assert find_opening(waiting, 500.1) == 500.0 + LONGEST_S


@given(st.lists(st.tuples(st.floats(0.0, 30.0), st.booleans()), max_size=30))
def test_it_is_shut_while_anybody_waits_and_never_for_ever(
    steps: list[tuple[float, bool]],
) -> None:
    waiting, now_s = AfterWaiting(), 0.0
    for passed_s, waits in steps:
        now_s += passed_s
        assert waiting.note(now_s, waits=waits) or not waits
    assert not waiting.note(now_s + LONGEST_S, waits=False)
