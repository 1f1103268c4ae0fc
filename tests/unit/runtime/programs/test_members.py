"""A program is what its open members do together."""

from __future__ import annotations

from math import log

import pytest

from flashedge.runtime.programs.members import Members, combine, count_shared
from flashedge.scheduling.lengths.families.log_t import LogT
from flashedge.scheduling.programs.program import Program

SHORT, LONG = LogT(mu=log(10), sigma=0.1), LogT(mu=log(500), sigma=0.1)
CHAT = Program(key="job", arrived_s=0.0, max_tokens=64, prompt_tokens=7, drawn_tokens=20)
SEARCH = Program(
    key="job", arrived_s=5.0, outputs=16, width=11, max_tokens=400, prompt_tokens=30, lengths=LONG
)


def test_a_program_of_one_member_is_that_member() -> None:
    assert combine([SEARCH]) is SEARCH


def test_members_add_up() -> None:
    both = combine([CHAT, SEARCH])
    assert (both.arrived_s, both.outputs, both.sequences) == (0.0, 17, 12)
    assert (both.max_tokens, both.prompt_tokens, both.drawn_tokens) == (400, 37, 20)
    assert both.lengths is LONG


def test_progress_counts_by_outputs() -> None:
    sure = Program(key="job", arrived_s=0.0, outputs=4, max_tokens=9, progress=1.0)
    new = Program(key="job", arrived_s=0.0, outputs=12, max_tokens=9)
    assert combine([sure, new]).progress == pytest.approx(0.25)


def test_a_member_that_ends_takes_all_of_its_own_with_it() -> None:
    members = Members()
    members.add("chat", CHAT)
    members.add("search", SEARCH)
    members.change("search", drawn_tokens=900)
    members.remove("search")
    members.remove("search")
    assert members.combine("job") == CHAT
    members.change("search", drawn_tokens=1_000)
    members.remove("chat")
    assert members.combine("job") is None
    assert members.find_program("chat") is None


def test_prompts_share_what_both_begin_with() -> None:
    assert count_shared((1, 2, 3), (1, 2, 4, 5)) == 2
    assert count_shared((1, 2), (1, 2, 4)) == 2
    assert count_shared((), (1,)) == 0
    members = Members()
    members.add("a", CHAT, (1, 2, 3, 4))
    members.add("b", CHAT, (1, 2, 9))
    found = members.get("b")
    assert found is not None
    assert found.shared_tokens == 2
