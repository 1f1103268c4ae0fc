"""Drafts of tokens from text: the index, the choice by the noise, and rates of acceptance."""

import math
from collections import Counter
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flashedge.scheduling.speculation.token_drafts import (
    KINDS_OF_INDEX,
    MOST_FOLLOWERS,
    AcceptanceRates,
    DraftToken,
    TextIndex,
    choose_follower,
    draft,
    find_kind,
)

LINE = [1, 2, 3, 4, 5, 6, 7, 8, 9, 1, 2, 3]
TEXT = st.lists(st.integers(0, 5), min_size=1, max_size=40)


def make_index(*texts: Sequence[int]) -> TextIndex:
    index = TextIndex()
    for text in texts:
        index.add(text)
    return index


def find(index: TextIndex, text: Sequence[int]) -> tuple[int, dict[int, int]] | None:
    """The length of the longest known context, and how often each token has followed it."""
    if (found := index.find(text)) is None:
        return None
    packed = found[1] if isinstance(found[1], list) else [found[1]]
    return found[0], {each & 0xFFFFFF: each >> 24 for each in packed}


@given(st.lists(TEXT, max_size=4), TEXT, st.integers(0, 40))
def test_the_index_counts_what_followed_the_longest_known_context(
    texts: list[list[int]], end: list[int], cut: int
) -> None:
    """Also if a text is counted in two parts."""
    index = make_index(*(text[:cut] for text in texts))
    for text in texts:
        index.add(text, min(cut, len(text)))
    expected = None
    for size in range(1, min(3, len(end)) + 1):
        places = [(text, at) for text in texts for at in range(size, len(text))]
        followed = Counter(t[at] for t, at in places if t[at - size : at] == end[-size:])
        expected = (size, followed) if followed else expected
    assert find(index, end) == expected


def test_a_context_keeps_its_first_followers_and_the_last() -> None:
    found = find(make_index(*([1, token] for token in (*range(10, 20), 12))), [1])
    assert found == (1, {**dict.fromkeys([*range(10, 17), 19], 1), 12: 2})
    assert len(found[1]) == MOST_FOLLOWERS


@given(st.dictionaries(st.integers(0, 2**24 - 1), st.integers(1, 9), min_size=2, max_size=8))
def test_the_follower_seen_most_often_is_chosen(counts: dict[int, int]) -> None:
    packed, lead = choose_follower([count << 24 | token for token, count in counts.items()])
    first = max(counts, key=lambda token: counts[token])  # the first of several
    second = sorted(counts.values())[-2]
    assert packed == counts[first] << 24 | first
    assert lead == pytest.approx(math.log(counts[first] / second))


def draft_from(
    index: TextIndex | list[TextIndex], text: Sequence[int], **fields: Any
) -> list[DraftToken]:
    asked = {"most": 8, "least_chance": 0.0, "rates": AcceptanceRates()}
    indices = index if isinstance(index, list) else [index]
    return draft(indices, text, **{"ends": lambda previous, token: False, **asked, **fields})


@pytest.mark.parametrize(
    ("fields", "count"),
    [
        ({}, 8),
        ({"most": 3}, 3),
        ({"most": -1}, 0),
        ({"least_chance": 0.25}, 2),
        ({"ends": lambda previous, token: token == 6}, 2),
        ({"ends": lambda previous, token: (previous, token) == (3, 4)}, 0),
    ],
)
def test_where_a_draft_ends(fields: dict[str, Any], count: int) -> None:
    found = draft_from(make_index(LINE), LINE, **fields)
    assert [guess.token for guess in found] == [4, 5, 6, 7, 8, 9, 1, 2][:count]
    assert draft_from(make_index(LINE), [77]) == []


def test_of_two_indices_the_one_that_was_right_more_often_is_followed() -> None:
    own, earlier = make_index([1, 2, 3]), make_index([1, 2, 4], [3, 5])
    rates = AcceptanceRates()

    def list_tokens() -> list[int]:
        return [guess.token for guess in draft_from([own, earlier], [1, 2], rates=rates)]

    assert list_tokens() == [3, 5], "of equal ones the first, and what it does not know the second"
    (wrong, later), (right,) = (
        [guess.kind for guess in draft_from(indices, [1, 2])]
        for indices in ([own, earlier], [TextIndex(), earlier])
    )
    assert len({wrong, later, right}) == 3
    rates.note([wrong], 0)
    assert list_tokens() == [4]
    rates.note([right], 0)
    rates.note([right], 0)
    assert list_tokens() == [3, 5]


def test_every_kind_of_a_draft_has_a_rate_of_its_own() -> None:
    cases = [*((count, None) for count in (1, 2, 3)), *((2, lead) for lead in (0.1, 1.0, 2.0))]
    kinds = [find_kind(order, count, lead) for order in (1, 2, 3) for count, lead in cases]
    assert sorted(kinds) == list(range(KINDS_OF_INDEX))


@pytest.mark.parametrize(("right", "rate"), [(0, 2 / 5), (1, 3 / 6), (3, 5 / 7)])
def test_rates_count_up_to_the_first_wrong_token(right: int, rate: float) -> None:
    rates = AcceptanceRates()
    rates.note([1] * 3, right)
    assert (rates.find(1), rates.find(0)) == (rate, 0.5)
