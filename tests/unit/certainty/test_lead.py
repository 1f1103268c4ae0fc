"""The chance that a vote's leader wins, and the paths that it still needs."""

from __future__ import annotations

from itertools import product
from math import comb

import pytest

from flashedge.certainty.lead import count_wanted, find_most_wanted, measure_lead


@pytest.mark.parametrize(
    ("answers", "cap", "chance"),
    [
        (["a", "a"], 8, 0.952),
        (["a", "a", "a"], 8, 0.992),
        (["a", "b", "a", "a"], 8, 0.960),
        (["a", "a", "b"], 8, 0.833),
        (["a", "b"], 8, 0.595),
        (["a", "a", "a", "a", "b", "b"], 8, 1.0),  # equal counts at the end are no loss
        (["a", None, "a"], 8, 0.929),  # a path without an answer does not vote, but is drawn
        (["a", "b", "c"], 3, 1.0),
        ([None, None], 8, None),
        ([], 8, None),
    ],
)
def test_by_the_counts(answers: list[str | None], cap: int, chance: float | None) -> None:
    found = measure_lead(answers, cap)
    assert found == (None if chance is None else pytest.approx(chance, abs=5e-4))


@pytest.mark.parametrize(("first", "second", "left"), [(1, 0, 7), (2, 1, 5), (3, 3, 4), (5, 4, 7)])
def test_it_is_the_share_of_all_continuations(first: int, second: int, left: int) -> None:
    """Each continuation weighs what Laplace's rule gives it, drawn one path after the other."""
    wins = 0.0
    for continuation in product("ab", repeat=left):
        counts, weight = {"a": first, "b": second}, 1.0
        for answer in continuation:
            weight *= (counts[answer] + 1) / (counts["a"] + counts["b"] + 2)
            counts[answer] += 1
        wins += weight * (counts["a"] >= counts["b"])
    assert measure_lead(["a"] * first + ["b"] * second, first + second + left) == pytest.approx(
        wins
    )


def test_a_vote_that_is_settled_is_sure() -> None:
    assert [measure_lead(["a"] * n, 2 * n) for n in range(1, 40)] == [1.0] * 39


def test_more_paths_are_wanted_where_answers_differ() -> None:
    def count(text: str, cap: int = 8) -> int:
        return count_wanted([None if a == "-" else a for a in text], cap, 0.955)

    assert count("") == 6  # three alike, of which a half would be
    assert count("aaa") == count("aaab") == 0
    assert count("aa") == 2  # one more, of which three quarters would be like the first two
    assert count("ab") == 4
    assert count("abcdef") == 2  # no more than there are
    assert count("aabb", 64) == 10
    assert count("----") == 4


@pytest.mark.parametrize("cap", [1, 2, 8, 16, 33])
def test_no_count_wants_more_than_equal_counts_do(cap: int) -> None:
    most = find_most_wanted(cap, 0.955)
    for first in range(cap + 1):
        for second in range(min(first, cap - first) + 1):
            answers = ["a"] * first + ["b"] * second
            assert count_wanted(answers, cap, 0.955) <= most
    assert most <= cap


def test_a_large_vote_is_exact() -> None:
    """Of 1,000 paths, 500 ended: binomial coefficients that no float holds."""
    answers = ["a"] * 260 + ["b"] * 240
    found = measure_lead(answers, 1000)
    ways = sum(comb(240 + x, x) * comb(760 - x, 260) for x in range(261))
    assert found == pytest.approx(ways / comb(1001, 500))
    assert 0.5 < found < 1.0
