"""A segment's text in steps, by each rule."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from flashedge.runtime.drive.segments import StepTexts
from flashedge.search.steps import build_rules
from flashedge.types import BLANK_LINE, MARKERS, STEP_RULES, TOKENS
from tests.support.byte_codec import ByteCodec

PIECES = ["So 1.", "\n\n", " Wait", ", 2", "\n", " Hmm", "."]


class PieceCodec(ByteCodec):
    """A token is one of PIECES."""

    rules = build_rules(enumerate(PIECES))

    def decode(self, token_ids: Sequence[int]) -> str:
        return "".join(PIECES[i] for i in token_ids)


def split(
    codec: ByteCodec, rule: str, ids: tuple[int, ...], *, to_end: bool = True
) -> tuple[str, ...]:
    texts = StepTexts(codec=codec, rule=rule, max_step_tokens=3)
    return texts.split(ids, codec.decode(ids), to_end=to_end)


@pytest.mark.parametrize(
    ("rule", "steps"),
    [
        (BLANK_LINE, ("So 1.\n\n", " Wait, 2\n Hmm.")),
        (MARKERS, ("So 1.\n\n Wait", ", 2\n Hmm", ".")),
        (TOKENS, ("So 1.\n\n Wait", ", 2\n Hmm", ".")),
    ],
)
def test_a_whole_answer_is_split_where_steps_would_have_ended(
    rule: str, steps: tuple[str, ...]
) -> None:
    assert split(PieceCodec(), rule, tuple(range(len(PIECES)))) == steps


def test_a_segment_that_is_one_step_stays_whole() -> None:
    for rule in (MARKERS, TOKENS):
        assert split(PieceCodec(), rule, (0, 1, 3), to_end=False) == ("So 1.\n\n, 2",)


def test_no_step_is_blank_and_no_character_is_cut() -> None:
    text = "a\n\n\n\n\n\nb€€"
    ids = tuple(text.encode())
    assert split(ByteCodec(), TOKENS, ids) == ("a\n\n\n\n\n", "\nb€€")
    for rule in STEP_RULES:
        assert split(PieceCodec(), rule, ()) == ("",)
