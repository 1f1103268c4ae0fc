"""Measures of certainty against values worked out by hand."""

import math
from itertools import product
from math import comb

import pytest

from flashedge.batch.batch import Claim, share_budget, top_up
from flashedge.certainty import measures

LN4 = math.log(4)


@pytest.mark.parametrize(
    ("answers", "expected"),
    [
        (["7", "7", "7", "7"], 1.0),
        (["1", "2", "3", "4"], 0.0),
        (["7", "7", "8", "8"], 0.5),  # H = ln 2, log n = 2 ln 2
        (["7", "7", "7", "8"], 1 - (0.75 * math.log(4 / 3) + 0.25 * LN4) / LN4),
        (["7", "7", "7", None], 1 - (0.75 * math.log(4 / 3) + 0.25 * LN4) / LN4),
        (["7", "7", None, None], 0.25),  # clusters of 2, 1, 1: H = 1.5 ln 2 of 2 ln 2
        (["7"], 0.0),
        ([None, None], None),
        ([], None),
    ],
)
def test_certainindex(answers: list[str | None], expected: float | None) -> None:
    assert measures.measure_certainty(answers) == pytest.approx(expected)


@pytest.mark.parametrize(
    ("answers", "window", "expected"),
    [
        ("a", 1, 1.0),
        ("ab", 3, None),
        ("aba", 3, 2 / 3),
        ("abb", 3, 2 / 3),
        ("abc", 3, 1 / 3),
        ("bbbaaa", 3, 1.0),
        ("aaa-", 3, None),  # the newest probe is in doubt
        ("a-a", 3, None),  # two confident answers
        ("a-aa", 3, 1.0),  # one in doubt is left out
        ("ba-a", 3, 2 / 3),
    ],
)
def test_consistency(answers: str, window: int, expected: float | None) -> None:
    assert (
        measures.measure_consistency([None if a == "-" else a for a in answers], window) == expected
    )


def test_hesitation() -> None:
    doubts = (
        "42} Wait, no",
        "hmm 3}",
        "Hold on",
        "7}. Actually it is 8",
        "4}\n\n### Double-Checking",
    )
    sure = "42}", "awaiting}", "await", "the weight is 3}"
    assert [text for text in (*doubts, *sure) if measures.hesitates(text)] == list(doubts)


def test_unsettled() -> None:
    rows = ("abcd", 5), ("abcd", 4), ("aabc", 4), ([*"aaaa", None, None, None], 3)
    found = [
        measures.is_unsettled(list(answers), after=after, below=0.5) for answers, after in rows
    ]
    assert found == [False, True, False, True]


def test_doubts_neither_settle_nor_unsettle() -> None:
    split, agreed = ["a", "b", "c"], ["a", "a", "a"]
    for doubts in ([None], [None, None]):
        assert not measures.is_unsettled([*agreed, *doubts], after=3, below=0.5)
        assert not measures.is_unsettled(["a", "b", *doubts], after=3, below=0.5)
        assert measures.is_unsettled(["a", "b", *doubts, "c"], after=3, below=0.5)
        assert not measures.has_settled([*"aaaa", *doubts], 2, epsilon=0.3)
        assert measures.has_settled([*"aaa", *doubts, "a"], 2, epsilon=0.3)
    assert measures.is_unsettled(split, after=3, below=0.5)
    rows = [None, None], [None, None, None], [*agreed, None, None, None]
    assert [measures.is_unsettled(one, after=3, below=0.5) for one in rows] == [False, True, True]


def test_settled_answer() -> None:
    pick = measures.pick_settled_answer
    assert pick(list("bbbaa"), 3) == "a"
    assert pick(["b", None, "a", None], 4) == "a"  # a tie: the newest
    assert pick(["b", "b", None, None], 2) == "b"  # none in the window: of all
    assert pick([None], 1) is None
    answers = ["5", "5", "4", "4", None, None, "5"]
    assert measures.measure_consistency(answers, 5) == 0.6
    assert pick(answers, 5) == "5"  # of the answers that agree to 0.6
    assert pick(answers, 3) == "4"


def test_total_variation() -> None:
    assert measures.measure_total_variation("aabb", "aabb") == 0.0
    assert measures.measure_total_variation("aaaa", "bbbb") == 1.0
    assert measures.measure_total_variation("aaab", "aabb") == pytest.approx(0.25)
    assert measures.measure_total_variation(["a", None], ["a", "b"]) == pytest.approx(0.5)


def test_the_bound_and_the_probes_it_needs_are_the_papers() -> None:
    """The least k: the bound holds there and not one below. By hand, at eps = 0.3, delta = 0.05,
    M = 2: 16 k exp(-0.005 (k - 1)) <= 0.05, so ln(320 k) <= 0.005 (k - 1); at k = 2,737 13.6829
    is above 13.6800, at 2,738 13.6833 is below 13.6850."""
    expected = 2002 * 8 * math.exp(-1000 * 0.01 / 2)
    assert measures.bound_failure(1001, epsilon=0.3, num_groups=2) == pytest.approx(expected)
    assert measures.count_needed_probes(epsilon=0.3, delta=0.05, num_groups=2) == 2738
    with pytest.raises(ValueError, match="epsilon"):
        measures.count_needed_probes(epsilon=0.0, delta=0.1, num_groups=2)
    with pytest.raises(ValueError, match="window"):
        measures.measure_consistency(["a"], 0)


def test_the_rule_itself() -> None:
    assert measures.has_settled("a" * 8, 4, epsilon=0.3)
    assert measures.has_settled("b" * 50 + "a" * 8, 4, epsilon=0.3)  # only the last 2k count
    assert not measures.has_settled("a" * 7, 4, epsilon=0.3)
    assert not measures.has_settled("aaaabbbb", 4, epsilon=0.9)
    assert not measures.has_settled("abababab", 4, epsilon=0.3)  # windows of 3 move by 1/3
    assert measures.has_settled("ab" * 40, 40, epsilon=0.3)  # they move by 1/39


def claim(wanted_tokens: int, certainty: float | None = 0.0) -> Claim:
    return Claim(wanted_tokens=wanted_tokens, certainty=certainty)


def test_a_shared_budget_goes_to_the_unsure() -> None:
    unsure, sure = claim(1000, 0.25), claim(1000, 0.75)
    assert share_budget(800, [unsure, sure]) == (600, 200)
    assert share_budget(800, [unsure, claim(0)]) == (800, 0)
    assert share_budget(800, [claim(100, None), unsure, sure]) == (100, 525, 175)
    assert share_budget(10_000, [unsure, sure]) == (1000, 1000)
    assert (share_budget(0, [unsure]), share_budget(5, [])) == ((0,), ())


def test_a_top_up_too_small_to_matter_goes_to_the_unsure() -> None:
    claims = [claim(1000, certainty) for certainty in (0.5, 0.0, 0.75)]
    assert top_up(700, claims, 64) == (200, 400, 100)
    assert top_up(210, claims, 64) == (70, 140, 0)
    assert top_up(90, claims, 64) == (0, 90, 0)
    assert top_up(63, claims, 64) == top_up(-5, claims, 64) == (0, 0, 0)
    assert top_up(100, [claim(0), claim(10)], 64) == (0, 10)


@pytest.mark.parametrize(
    ("answers", "cap", "chance"),
    [
        (["a", "a"], 8, 0.952),
        (["a", "a", "a", "a", "b", "b"], 8, 1.0),  # equal counts at the end are no loss
        (["a", None, "a"], 8, 0.929),  # a path without an answer does not vote, but is drawn
        (["a", "b", "c"], 3, 1.0),
        ([None, None], 8, None),
        ([], 8, None),
    ],
)
def test_by_the_counts(answers: list[str | None], cap: int, chance: float | None) -> None:
    assert measures.measure_lead(answers, cap) == pytest.approx(chance, abs=5e-4)


@pytest.mark.parametrize(("first", "second", "left"), [(1, 0, 7), (2, 1, 5), (3, 3, 4), (5, 4, 7)])
def test_it_is_the_share_of_all_continuations(first: int, second: int, left: int) -> None:
    wins = 0.0
    for continuation in product("ab", repeat=left):
        counts, weight = {"a": first, "b": second}, 1.0
        for answer in continuation:
            weight *= (counts[answer] + 1) / (counts["a"] + counts["b"] + 2)
            counts[answer] += 1
        wins += weight * (counts["a"] >= counts["b"])
    answers = ["a"] * first + ["b"] * second
    assert measures.measure_lead(answers, len(answers) + left) == pytest.approx(wins)


def test_more_paths_are_wanted_where_answers_differ() -> None:
    def count(text: str, cap: int = 8) -> int:
        return measures.count_wanted([None if a == "-" else a for a in text], cap, 0.955)

    assert count("") == 6  # three alike, of which a half would be
    assert count("aaa") == count("aaab") == 0
    assert count("aa") == 2  # one more, of which three quarters would be like the first two
    assert count("ab") == 4
    assert count("abcdef") == 2  # no more than there are
    assert count("aabb", 64) == 10
    assert count("----") == 4
    assert measures.measure_lead(["a"], 2) == 1.0, "the other answer can only draw level"


@pytest.mark.parametrize("cap", [1, 2, 8, 16, 33])
def test_no_count_wants_more_than_equal_counts_do(cap: int) -> None:
    most = measures.find_most_wanted(cap, 0.955)
    for first in range(cap + 1):
        for second in range(min(first, cap - first) + 1):
            answers = ["a"] * first + ["b"] * second
            assert measures.count_wanted(answers, cap, 0.955) <= most
    assert most <= cap


def test_a_large_vote_is_exact() -> None:
    answers = ["a"] * 260 + ["b"] * 240
    found = measures.measure_lead(answers, 1000)
    ways = sum(comb(240 + x, x) * comb(760 - x, 260) for x in range(261))
    assert found == pytest.approx(ways / comb(1001, 500))
    assert 0.5 < found < 1.0
