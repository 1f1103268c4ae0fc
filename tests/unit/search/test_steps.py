"""Where steps end, in text and in token ids."""

from __future__ import annotations

import json
import pickle

import pytest

from flashedge.search.steps import BoundaryRule, build_rules, split_steps
from flashedge.types import BLANK_LINE, MARKERS, STEP_RULES, TOKENS

TEXTS = ["A", "\n\n", ".\n\n", "\n", "B\n", "\nC", " \n", "\n\nD", "", " "]
A, BLANK, DOT, NEWLINE, B, C, SPACE_NL, D, EMPTY, SPACE = range(len(TEXTS))


@pytest.fixture
def rule() -> BoundaryRule:
    return BoundaryRule.from_decode(TEXTS.__getitem__, len(TEXTS))


@pytest.mark.parametrize(
    ("text", "steps"),
    [
        ("one", ("one",)),
        ("one\n\ntwo", ("one\n\n", "two")),
        ("one\n\ntwo\n\n", ("one\n\n", "two\n\n")),
        ("one\n\n\n\ntwo", ("one\n\n\n\n", "two")),
        ("one\ntwo", ("one\ntwo",)),
        ("one\n \ntwo", ("one\n \ntwo",)),
        ("\n\none\n\ntwo", ("\n\none\n\n", "two")),
        ("one\n\n  \n", ("one\n\n  \n",)),
        ("", ("",)),
        ("\n\n", ("\n\n",)),
    ],
)
def test_split_steps(text: str, steps: tuple[str, ...]) -> None:
    assert split_steps(text) == steps


@pytest.mark.parametrize(
    ("prev", "token", "ends"),
    [
        (A, BLANK, True),
        (A, DOT, True),
        (None, DOT, True),
        (A, NEWLINE, False),
        (NEWLINE, NEWLINE, True),
        (B, NEWLINE, True),
        (B, C, True),
        (SPACE_NL, C, True),
        (B, A, False),
        (A, C, False),
        (A, D, True),
        (B, SPACE, False),
        (NEWLINE, EMPTY, False),
    ],
)
def test_ends_step(rule: BoundaryRule, prev: int | None, token: int, ends: bool) -> None:
    assert rule.ends_step(prev, token) is ends


def test_a_step_is_never_empty(rule: BoundaryRule) -> None:
    """A blank line at a step's start is the rest of the one that ended the step before."""
    assert not rule.ends_step(None, BLANK)
    assert not rule.ends_step(None, NEWLINE)
    assert rule.ends_step(None, D)
    assert rule.split_ids([A, BLANK, BLANK, A, BLANK]) == ((A, BLANK), (BLANK, A, BLANK))


def test_split_ids(rule: BoundaryRule) -> None:
    assert rule.split_ids([A, DOT, A, NEWLINE, NEWLINE, A]) == (
        (A, DOT),
        (A, NEWLINE, NEWLINE),
        (A,),
    )
    assert rule.split_ids([]) == ()


def test_unknown_ids_end_nothing(rule: BoundaryRule) -> None:
    assert not rule.ends_step(B, 10_000)
    assert not rule.ends_step(10_000, C)


def test_travels_to_an_engine_process(rule: BoundaryRule) -> None:
    assert BoundaryRule.from_json(json.loads(json.dumps(rule.to_json()))) == rule
    assert pickle.loads(pickle.dumps(rule)) == rule


# ---------------------------------------------------------------- the rules of a vocabulary


def test_a_vocabulary_has_every_rule() -> None:
    texts = [*TEXTS, "Wait", " Wait", "Waiting", " Alternatively", "</think>", "wait"]
    rules = build_rules(enumerate(texts))
    assert tuple(rules) == STEP_RULES
    assert rules[BLANK_LINE] == BoundaryRule.from_decode(texts.__getitem__, len(texts))
    first = len(TEXTS)
    assert rules[MARKERS].holds == {first, first + 1, first + 3, first + 4}
    ids = (first, A, first + 1, A, first + 2, first + 3, A)
    assert rules[MARKERS].split_ids(ids) == ((first,), (A, first + 1), ids[3:6], (A,))
    assert rules[TOKENS].split_ids((A, BLANK, first)) == ((A, BLANK, first),)
