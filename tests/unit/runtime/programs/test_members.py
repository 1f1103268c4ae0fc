"""A program is what its open members do together."""

from __future__ import annotations

from dataclasses import replace
from math import log

import pytest

from flashedge.runtime.programs.members import Members, combine
from flashedge.scheduling.lengths.distribution import LogT
from flashedge.scheduling.programs.program import Kind, Program

SHORT, LONG = LogT(mu=log(10), sigma=0.1), LogT(mu=log(500), sigma=0.1)
CHAT = Program(key="job", arrived_s=0.0, max_tokens=64, prompt_tokens=7, drawn_tokens=20)
SEARCH = Program(
    key="job", arrived_s=5.0, outputs=16, width=11, max_tokens=400, prompt_tokens=30, lengths=LONG
)


def test_a_program_of_one_member_is_that_member() -> None:
    assert replace(SEARCH, **combine([SEARCH])) == SEARCH


def test_members_add_up() -> None:
    both = replace(CHAT, **combine([CHAT, SEARCH]))
    assert (both.outputs, both.sequences) == (17, 12)
    assert (both.max_tokens, both.prompt_tokens, both.drawn_tokens) == (400, 37, 20)
    assert both.lengths is LONG


def test_progress_counts_by_outputs() -> None:
    sure = Program(key="job", arrived_s=0.0, outputs=4, max_tokens=9, progress=1.0)
    new = Program(key="job", arrived_s=0.0, outputs=12, max_tokens=9)
    assert combine([sure, new])["progress"] == pytest.approx(0.25)


def test_a_member_that_ends_takes_all_of_its_own_with_it() -> None:
    members = Members()
    members.add("chat", CHAT)
    members.add("search", SEARCH)
    members.change("search", drawn_tokens=900)
    members.remove("search")
    members.remove("search")
    assert members.list("job") == (CHAT,)
    members.change("search", drawn_tokens=1_000)
    members.remove("chat")
    assert members.list("job") == ()
    assert members.find_program("chat") is None


def test_what_is_left_is_what_each_member_has_left() -> None:
    """Whichever of them was predicted last."""
    members = Members()
    members.add("search", SEARCH)
    members.add("chat", replace(CHAT, lengths=SHORT, drawn_tokens=0))
    left = members.combine_works("job").expected
    assert left == pytest.approx(16 * 383 + 10, rel=0.05)  # paths of 500 tokens, cut at 400


def test_the_most_urgent_member_says_what_a_program_is_for() -> None:
    batch = replace(SEARCH, kind=Kind.BATCH)
    assert combine([batch, replace(CHAT, kind=Kind.CHAT)])["kind"] is Kind.CHAT
    assert combine([batch, SEARCH])["kind"] is Kind.SEARCH
