"""Words that several parts of the product share."""

from __future__ import annotations

import pytest

from flashedge.client.words import describe_wait, format_duration


@pytest.mark.parametrize(
    ("position", "starts_in_s", "words"),
    [
        (2, 12.4, "2 before it, starts in about 12 s"),
        (0, 3700.0, "next, starts in about 1 h"),
        (0, 0.0, "next, starts in about a second"),
        (1, None, "1 before it"),
        (None, None, ""),
    ],
)
def test_a_wait_in_words(position: int | None, starts_in_s: float | None, words: str) -> None:
    assert describe_wait(position, starts_in_s) == words


def test_durations_have_one_unit() -> None:
    shown = [format_duration(s) for s in (0.2, 59.4, 61, 7300, 200_000)]
    assert shown == ["0 s", "59 s", "1 min", "2 h", "2 d"]
