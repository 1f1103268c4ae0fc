"""What a user may know of each program."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import exp, log

import pytest

from flashedge.scheduling.programs.program import Kind, Program
from flashedge.scheduling.programs.standing import find_standings
from flashedge.scheduling.programs.work import Work, estimate_work
from scripts.lab.distributions import LogNormal

WAITING = Program(key="a", client="me", arrived_s=10.0, outputs=4, max_tokens=10_000)
LENGTHS = LogNormal(mu=log(100), sigma=0.5)
UPPER_TENTH = 1.2816  # of the standard normal distribution


def with_work(programs: Sequence[Program]) -> list[tuple[Program, Work]]:
    return [(program, estimate_work(program)) for program in programs]


def test_places_count_the_programs_in_the_queue() -> None:
    running = replace(WAITING, key="r", started_s=12.0)
    request = replace(WAITING, key="q", kind=Kind.CHAT)
    programs = [request, running, WAITING, replace(WAITING, key="b")]
    found = find_standings("pair", with_work(programs), 20.0, {"b": None, "a": 3.0})
    assert [s.key for s in found] == ["q", "r", "a", "b"]
    assert [s.place for s in found] == [None, None, 0, 1]
    assert [s.has_started for s in found] == [False, True, False, False]
    assert [s.starts_in_s for s in found] == [None, None, 3.0, None]
    assert [s.waited_s for s in found] == [10.0, 2.0, 10.0, 10.0], "until its start, else until now"


def test_a_program_that_started_is_not_in_the_queue() -> None:
    """One of its runs may still wait. The program does not."""
    (found,) = find_standings(
        "pair", with_work([replace(WAITING, started_s=12.0)]), 20.0, {"a": 3.0}
    )
    assert (found.place, found.starts_in_s) == (None, None)


def test_a_predicted_program_has_a_median_and_a_tail() -> None:
    (unknown,) = find_standings("pair", with_work([WAITING]), 20.0, {})
    assert (unknown.median_tokens, unknown.tail_tokens) == (None, None)
    assert unknown.left_tokens == 4 * 10_000
    program = replace(WAITING, lengths=LENGTHS, kind=Kind.BATCH)
    (known,) = find_standings("pair", with_work([program]), 20.0, {})
    assert known.kind == "batch"
    assert known.median_tokens == pytest.approx(100, rel=0.01)
    assert known.tail_tokens == pytest.approx(100 * exp(0.5 * UPPER_TENTH), rel=0.01)
    assert known.left_tokens == pytest.approx(4 * 100 * exp(0.5**2 / 2), rel=0.01)
