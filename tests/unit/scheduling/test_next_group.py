"""When the next group is drawn ahead."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flashedge.scheduling.speculation.next_group import ContinuationRate, NextGroup, is_worthwhile

EVEN = NextGroup(now=5, paths=11, chance=0.5)


def flat(batch: int) -> float:
    """A step of an engine that is far from full."""
    return 1.0


def rising(batch: int) -> float:
    """A step of an engine without room: each sequence adds its own time."""
    return float(batch)


def test_with_room_for_both_a_group_is_drawn_ahead_however_many_others_there_are() -> None:
    assert is_worthwhile(EVEN, beside=100, programs=50, step_s=flat)


def test_without_room_it_waits_if_it_may_be_wasted() -> None:
    assert not is_worthwhile(EVEN, beside=0, programs=1, step_s=rising)


def test_a_group_that_is_never_used_is_never_drawn() -> None:
    assert not is_worthwhile(replace(EVEN, chance=0.0), beside=0, programs=1, step_s=flat)


def test_more_programs_that_wait_for_wasted_tokens_forbid_it() -> None:
    def slow(batch: int) -> float:
        return 1.0 + 0.02 * batch

    granted = [is_worthwhile(EVEN, 0, programs, slow) for programs in (1, 2, 4, 8, 16)]
    assert granted == sorted(granted, reverse=True)
    assert granted[0]
    assert not granted[-1]


@given(
    now=st.integers(1, 32),
    paths=st.integers(1, 32),
    beside=st.integers(0, 200),
    programs=st.integers(1, 40),
    slope=st.floats(0.0, 1.0),
    chances=st.tuples(st.floats(0.0, 1.0), st.floats(0.0, 1.0)),
)
def test_a_likelier_group_is_drawn_ahead_wherever_a_less_likely_one_is(
    now: int,
    paths: int,
    beside: int,
    programs: int,
    slope: float,
    chances: tuple[float, float],
) -> None:
    less, more = (NextGroup(now=now, paths=paths, chance=chance) for chance in sorted(chances))

    def step_s(batch: int) -> float:
        return 1.0 + slope * batch

    if is_worthwhile(less, beside, programs, step_s):
        assert is_worthwhile(more, beside, programs, step_s)


def test_the_chance_is_learned() -> None:
    rate = ContinuationRate()
    assert rate.chance == pytest.approx(0.5)
    for went_on in (True, False, False, False):
        rate.note(went_on)
    assert rate.chance == pytest.approx(2 / 6)
