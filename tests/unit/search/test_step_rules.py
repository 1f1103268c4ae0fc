"""Where steps end, in text and in token ids."""

import math
from dataclasses import replace

import pytest

from flashedge.search import step_rules
from flashedge.search.step_rules import TOP, BoundaryRule, StepEnd, estimate_entropy
from flashedge.types import BLANK_LINE, MARKERS, MAX_STEP_ENTROPY, STEP_RULES, TOKENS, FinishReason

TEXTS = ["A", "\n\n", ".\n\n", "\n", "B\n", "\nC", " \n", "\n\nD", "", " "]
A, BLANK, DOT, NEWLINE, B, C, SPACE_NL, D, EMPTY, SPACE = range(len(TEXTS))

BLANK_LINES = BoundaryRule.from_texts(enumerate(TEXTS))


@pytest.mark.parametrize(
    ("text", "steps"),
    [
        ("one\n\ntwo", ("one\n\n", "two")),
        ("one\n\n\n\ntwo", ("one\n\n\n\n", "two")),
        ("\n\none\n\ntwo", ("\n\none\n\n", "two")),
        ("one\n\n  \n", ("one\n\n  \n",)),
    ],
)
def test_split_steps(text: str, steps: tuple[str, ...]) -> None:
    assert step_rules.split_steps(text) == steps


@pytest.mark.parametrize(
    ("prev", "token", "ends"),
    [
        (A, BLANK, True),
        (None, DOT, True),
        (A, NEWLINE, False),
        (NEWLINE, NEWLINE, True),
        (B, C, True),
        (SPACE_NL, C, True),
        (B, SPACE, False),
        (NEWLINE, EMPTY, False),
        (B, 10_000, False),
        (None, BLANK, False),
    ],
)
def test_ends_step(prev: int | None, token: int, ends: bool) -> None:
    assert BLANK_LINES.ends_step(prev, token) is ends


def test_ids_are_split_into_steps_that_are_never_empty() -> None:
    split = BLANK_LINES.split_ids
    assert split([A, BLANK, BLANK, A, BLANK]) == ((A, BLANK), (BLANK, A, BLANK))
    assert split([A, DOT, A, NEWLINE, NEWLINE, A]) == ((A, DOT), (A, NEWLINE, NEWLINE), (A,))
    assert split([]) == ()


def test_a_vocabulary_has_every_rule() -> None:
    texts = [*TEXTS, "Wait", " Wait", "Waiting", " Alternatively", "</think>", "wait"]
    rules = step_rules.build_rules(enumerate(texts))
    assert tuple(rules) == STEP_RULES
    assert rules[BLANK_LINE] == BoundaryRule.from_texts(enumerate(texts))
    first = len(TEXTS)
    assert rules[MARKERS].holds == {first, first + 1, first + 3, first + 4}
    ids = (first, A, first + 1, A, first + 2, first + 3, A)
    assert rules[MARKERS].split_ids(ids) == ((first,), (A, first + 1), ids[3:6], (A,))
    assert rules[TOKENS].split_ids((A, BLANK, first)) == ((A, BLANK, first),)


EOS = 99
END = StepEnd(max_tokens=8, room=100, boundary=BLANK_LINES, stop_ids=frozenset({EOS}))


@pytest.mark.parametrize(
    ("end", "token_ids", "expected"),
    [
        (END, [A, A], (2, None)),
        (END, [A, BLANK, A], (2, FinishReason.BOUNDARY)),
        (END, [A, NEWLINE, NEWLINE, A], (3, FinishReason.BOUNDARY)),
        (END, [A, EOS, A], (2, FinishReason.STOP)),
        (END, [A] * 9, (8, FinishReason.STEP_LIMIT)),
        (replace(END, room=3), [A] * 9, (3, FinishReason.LENGTH)),
        (replace(END, room=8), [A] * 9, (8, FinishReason.LENGTH)),
        (replace(END, boundary=None), [A, BLANK, A], (3, None)),
        # a boundary counts where it uses up the last token
        (replace(END, room=2), [A, BLANK], (2, FinishReason.BOUNDARY)),
        (replace(END, room=2), [A, EOS], (2, FinishReason.STOP)),
    ],
)
def test_a_step_is_cut_where_it_ends(
    end: StepEnd, token_ids: list[int], expected: tuple[int, FinishReason | None]
) -> None:
    assert end.cut(token_ids) == expected


RULE = step_rules.EntropyRule(threshold=1.0, min_tokens=2)


def measure_exactly(shares: list[float]) -> float:
    return -sum(p * math.log(p) for p in shares if p > 0)


@pytest.mark.parametrize(
    ("entropies", "before", "kept"),
    [
        ([0.1, 0.2, 0.3], 0, 3),
        ([0.1, 0.2, 1.5, 0.1], 0, 2),
        ([0.1, 0.2, 1.0, 0.1], 0, 4),  # not more than the threshold
        ([9.0, 9.0, 9.0], 0, 2),  # the least length comes first
        ([9.0, 0.1, 0.1], 0, 3),
        ([9.0, 0.1, 0.1], 1, 3),
        ([9.0, 0.1, 0.1], 2, 0),
        ([], 5, 0),
    ],
)
def test_a_step_is_cut_before_the_first_uncertain_token(
    entropies: list[float], before: int, kept: int
) -> None:
    assert RULE.count_kept(entropies, before) == kept


def test_an_estimate_of_few_tokens_is_exact() -> None:
    shares = [0.5, 0.25, 0.125, 0.125]
    assert estimate_entropy([math.log(p) for p in shares]) == pytest.approx(1.75 * math.log(2))
    assert estimate_entropy([0.0, -math.inf]) == 0.0


def test_the_other_tokens_count_as_one() -> None:
    shares = [0.04] * TOP + [0.02] * 10
    found = estimate_entropy([math.log(p) for p in shares])
    assert found == pytest.approx(measure_exactly([0.04] * TOP + [0.2]))
    assert measure_exactly(shares) - found == pytest.approx(0.2 * math.log(10))


def test_no_estimate_is_below_every_threshold() -> None:
    most = estimate_entropy([-math.log(TOP + 1)] * (TOP + 1))
    assert most == pytest.approx(math.log(TOP + 1))
    assert most > MAX_STEP_ENTROPY
