"""The votes: a line on a small terminal, else a table."""

from __future__ import annotations

from flashedge.tui.widgets.answer import CHOSEN, draw_line, draw_table
from flashedge.types import Vote

VOTES = (9, 3, 2, 1, 1)


SHARES = tuple(
    (Vote(answer=f"{10 + i}", weight=n / 16, count=n), n / 16) for i, n in enumerate(VOTES)
)


def draw(width: int) -> str:
    return draw_line("Votes", SHARES, "10", width).plain


def test_a_line_has_as_many_votes_as_it_has_room_for_and_counts_the_rest() -> None:
    assert draw(100).count("×") == len(VOTES)
    assert "more" not in draw(100)
    line = draw(50)
    assert len(line) <= 50
    assert line.endswith(f"{len(VOTES) - line.count('×')} more")
    assert draw(12).count("×") == 1, "one always stands"


def test_the_chosen_answer_stands_first_and_is_marked() -> None:
    line = draw_line("Answer", SHARES, "12", 60).plain
    assert line.startswith(f"Answer     {CHOSEN} 12 ×2 12% · 10 ×9 56%")
    assert line.count(CHOSEN) == 1


def test_an_answer_that_no_vote_has_is_shown() -> None:
    assert draw_line("Answer", (), "12", 60).plain == f"Answer     {CHOSEN} 12"


def test_the_table_has_a_header_and_marks_the_chosen_answer() -> None:
    rows = [line.plain for line in draw_table(SHARES, "11", 42, 8)]
    assert rows[0].split() == ["answer", "paths", "share"]
    assert [row[:4].strip() for row in rows[1:]] == ["10", f"{CHOSEN} 11", "12", "13", "14"]
    assert {len(row) for row in rows} == {42}


def test_the_table_counts_what_it_has_no_line_for() -> None:
    rows = [line.plain for line in draw_table(SHARES, "10", 42, 4)]
    assert len(rows) == 4
    assert rows[-1].strip() == "3 more answers from 4 paths"
