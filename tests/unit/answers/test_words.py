"""Grouping of open-ended answers: links, numbers, and the labelled pairs."""

import itertools
import json
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flashedge.answers.numbers import find_numbers, numbers_conflict
from flashedge.answers.pairwise import are_alike, group_by_complete_links, measure_likeness
from flashedge.answers.spelling import normalize
from tests.support.paths import DATA


def test_complete_links_do_not_chain() -> None:
    chain = [(0.9, 0, 1), (0.8, 1, 2), (0.7, 2, 3)]
    assert group_by_complete_links(5, chain) == (0, 0, 2, 2, 4)
    assert group_by_complete_links(3, [(0.9, 0, 1), (0.8, 1, 2), (0.7, 2, 0)]) == (0, 0, 0)
    assert group_by_complete_links(0, []) == ()


@given(st.sets(st.tuples(st.integers(0, 7), st.integers(0, 7)), max_size=28), st.randoms())
def test_complete_links(found: set[tuple[int, int]], rng: random.Random) -> None:
    pairs = {(i, j): (i * 5 + j * 3) % 4 / 4 for i, j in found if i < j}
    alike = [(similarity, i, j) for (i, j), similarity in pairs.items()]
    homes = group_by_complete_links(8, alike)
    members = {home: [i for i in range(8) if homes[i] == home] for home in set(homes)}
    assert all(min(group) == home for home, group in members.items())
    for a, b in itertools.combinations_with_replacement(members.values(), 2):
        whole = all((min(i, j), max(i, j)) in pairs for i in a for j in b if i != j)
        assert whole == (a is b)
    rng.shuffle(alike)
    assert group_by_complete_links(8, [(s, j, i) for s, i, j in alike]) == homes


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("It takes 3 days, or three.", {3}),
        ("twenty-one of five thousand", {21, 5000}),
        ("a hundred and two; 1.5 million; 5,000", {102, 1_500_000, 5000}),
        ("three hundred and forty-five thousand", {345_000}),
        ("two dozen m² on the second floor", {24, 2}),
        ("ten, five, thirty and forty", {10, 5, 30, 40}),
        ("no number, and none here", set()),
    ],
)
def test_numbers_in_digits_and_words(text: str, values: set[float]) -> None:
    assert find_numbers(text) == values


def conflict(a: str, b: str) -> bool:
    return numbers_conflict(find_numbers(a), find_numbers(b))


def test_numbers_conflict_when_each_has_its_own() -> None:
    assert conflict("3 days", "four days")
    assert not conflict("3 days", "three days")
    assert not conflict("91 is prime", "91 = 7 * 13")


def test_likeness_of_open_ended_text() -> None:
    a = "Sort the list, then scan it once for equal neighbours."
    b = "First sort the list and then scan it once for equal neighbours"
    other = "Use a hash set and return as soon as an element is seen twice."
    assert measure_likeness(a, a.upper()) == 1.0
    assert measure_likeness(a, b) == measure_likeness(b, a) > 0.6 > measure_likeness(a, other)
    assert [are_alike(a, b), are_alike(a, other)] == [True, False]
    assert not are_alike("It takes 3 days to get there.", "It takes 4 days to get there.")
    assert measure_likeness("", "x") == 0.0


def test_likeness_on_the_labelled_answers() -> None:
    lines = (DATA / "open_answers.jsonl").read_text(encoding="utf-8").splitlines()
    pairs = [json.loads(line) for line in lines]
    tune, test = ({p["question"] for p in pairs if p["split"] == s} for s in ("tune", "test"))
    assert len(tune) == len(test)
    assert tune.isdisjoint(test)
    assert len(pairs) >= 120
    called = [(are_alike(p["left"], p["right"]), p["same"]) for p in pairs]
    exact = [(normalize(p["left"]) == normalize(p["right"]), p["same"]) for p in pairs]
    assert (called.count((True, True)), called.count((True, False))) == (24, 40)
    assert (exact.count((True, True)), exact.count((True, False))) == (6, 0)
    figures = [p for p in pairs if conflict(p["left"], p["right"])]
    assert len(figures) > 5
    assert not any(p["same"] or are_alike(p["left"], p["right"]) for p in figures)
