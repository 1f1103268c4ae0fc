"""Where steps end, in text and in token ids."""

from __future__ import annotations

from dataclasses import replace

import pytest

from flashedge.search.steps import BoundaryRule, StepEnd, build_rules, split_steps
from flashedge.types import BLANK_LINE, MARKERS, STEP_RULES, TOKENS, FinishReason

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
        (B, 10_000, False),
        (10_000, C, False),
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


# ---------------------------------------------------------------- the end of a requested step

EOS = 99
END = StepEnd(
    max_tokens=8,
    room=100,
    boundary=BoundaryRule.from_texts(enumerate(TEXTS)),
    stop_ids=frozenset({EOS}),
)


@pytest.mark.parametrize(
    ("end", "token_ids", "expected"),
    [
        (END, [A, A], (2, None)),
        (END, [A, BLANK, A], (2, FinishReason.BOUNDARY)),
        (END, [A, NEWLINE, NEWLINE, A], (3, FinishReason.BOUNDARY)),
        (END, [BLANK, A, BLANK], (3, FinishReason.BOUNDARY)),
        (END, [A, EOS, A], (2, FinishReason.STOP)),
        (END, [A] * 9, (8, FinishReason.STEP_LIMIT)),
        (replace(END, room=3), [A] * 9, (3, FinishReason.LENGTH)),
        (replace(END, room=8), [A] * 9, (8, FinishReason.LENGTH)),
        (replace(END, boundary=None), [A, BLANK, A], (3, None)),
    ],
)
def test_a_step_is_cut_where_it_ends(
    end: StepEnd, token_ids: list[int], expected: tuple[int, FinishReason | None]
) -> None:
    assert end.cut(token_ids) == expected


@pytest.mark.parametrize("limit", ["room", "max_tokens"])
def test_a_boundary_counts_where_it_uses_up_the_last_token(limit: str) -> None:
    """As for the stock loop, whose stop string counts before vLLM's length limit."""
    end = replace(END, **{limit: 2})
    assert end.cut([A, BLANK]) == (2, FinishReason.BOUNDARY)
    assert end.cut([A, EOS]) == (2, FinishReason.STOP)
