"""The line of votes on a small terminal."""

from __future__ import annotations

from flashedge.tui.widgets.votes import draw_line
from flashedge.types import Vote

VOTES = (9, 3, 2, 1, 1)


def draw(width: int) -> str:
    shares = tuple(
        (Vote(answer=f"{10 + i}", weight=n / 16, count=n), n / 16) for i, n in enumerate(VOTES)
    )
    return draw_line(shares, width).plain


def test_all_votes_are_shown_where_there_is_room() -> None:
    assert draw(100).count("×") == len(VOTES)
    assert "more" not in draw(100)


def test_the_rest_is_counted_where_there_is_none() -> None:
    line = draw(50)
    assert len(line) <= 50
    assert line.endswith(f"{len(VOTES) - line.count('×')} more")


def test_one_vote_always_stands() -> None:
    assert draw(12).count("×") == 1
