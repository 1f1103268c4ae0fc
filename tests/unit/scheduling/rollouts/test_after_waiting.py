"""The gate stays shut until nobody has waited for as long as somebody had."""

from __future__ import annotations

import pytest
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
    assert find_opening(waiting, 20.1) == pytest.approx(40.1)


def test_who_waits_before_it_opens_adds_to_the_waiting() -> None:
    waiting = AfterWaiting()
    wait(waiting, 0.0, 10.0)
    assert waiting.note(10.1, waits=False)
    assert waiting.note(18.1, waits=False)  # 2 of 10 seconds are left
    wait(waiting, 18.2, 23.2)
    assert find_opening(waiting, 23.3) == pytest.approx(23.3 + 2.0 + 5.0, abs=0.2)


def test_what_is_long_past_does_not_count() -> None:
    waiting = AfterWaiting()
    wait(waiting, 0.0, 20.0)
    assert find_opening(waiting, 20.1) == pytest.approx(40.1)
    wait(waiting, 100.0, 100.0)
    assert find_opening(waiting, 100.1) == 100.0 + SHORTEST_S


def test_a_heavy_load_that_is_over_is_forgotten() -> None:
    waiting = AfterWaiting()
    wait(waiting, 0.0, 500.0)
    assert find_opening(waiting, 500.1) == pytest.approx(500.1 + LONGEST_S)


@pytest.mark.parametrize("every_s", [3, 10, 50])
def test_moments_do_not_add_up(every_s: int) -> None:
    """However often a program waits for a moment, the gate opens a second later."""
    waiting = AfterWaiting()
    for moment in range(0, 1_000, every_s):
        wait(waiting, moment, moment + 0.1)
        assert find_opening(waiting, moment + 0.2) == pytest.approx(moment + 0.1 + SHORTEST_S)


@pytest.mark.parametrize(("waited_s", "opens"), [(3, True), (7, False)])
def test_it_opens_where_people_wait_for_less_than_half_of_the_time(
    waited_s: int, opens: bool
) -> None:
    """Of each ten seconds."""
    waiting, was_open = AfterWaiting(), False
    for second in range(1_000):
        for tenth in range(10):
            waits = second % 10 < waited_s
            was_open |= not waiting.note(second + tenth / 10, waits=waits) and second > 100
    assert was_open is opens


def test_time_that_nobody_looked_at_is_not_waiting() -> None:
    waiting = AfterWaiting()
    wait(waiting, 0.0, 0.0)
    wait(waiting, 3_600.0, 3_600.0)
    assert find_opening(waiting, 3_600.1) == pytest.approx(3_600.1 + SHORTEST_S, abs=SHORTEST_S)


@pytest.mark.parametrize("ends_waiting", [True, False])
def test_a_heavy_load_is_forgotten_though_nobody_looked_since(ends_waiting: bool) -> None:
    """The last boosted run ended in it, and the next one comes an hour later."""
    waiting = AfterWaiting()
    wait(waiting, 0.0, 500.0)
    if not ends_waiting:
        waiting.note(500.1, waits=False)
    assert not waiting.note(3_600.0, waits=False)


@given(st.lists(st.tuples(st.floats(0.0, 30.0), st.booleans()), max_size=30))
def test_it_is_shut_while_anybody_waits_and_opens_about_a_minute_after_the_last(
    steps: list[tuple[float, bool]],
) -> None:
    waiting, now_s = AfterWaiting(), 0.0
    for passed_s, waits in steps:
        now_s += passed_s
        assert waiting.note(now_s, waits=waits) or not waits
    assert not waiting.note(now_s + LONGEST_S + SHORTEST_S, waits=False)
