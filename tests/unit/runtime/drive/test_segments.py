"""Generated ids become text and steps: whole characters, by each rule."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flashedge.runtime.drive.segments import IncrementalText, StepTexts
from flashedge.search.step_rules import build_rules
from flashedge.types import BLANK_LINE, MARKERS, STEP_RULES, TOKENS
from tests.support.byte_codec import EOS, ByteCodec, Words

PIECES = ["So 1.", "\n\n", " Wait", ", 2", "\n", " Hmm", "."]


class PieceCodec(ByteCodec):
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
def test_an_answer_is_split_where_steps_would_have_ended(rule: str, steps: tuple[str, ...]) -> None:
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


@given(st.text(alphabet=st.sampled_from("a é€😀\n"), max_size=20), st.data())
def test_text_is_whole_however_it_is_cut(text: str, data: st.DataObject) -> None:
    ids = text.encode()
    decoder = IncrementalText(ByteCodec())
    told = ""
    while ids:
        size = data.draw(st.integers(1, len(ids)))
        told += decoder.feed(tuple(ids[:size]))
        assert text.startswith(told)
        assert "\N{REPLACEMENT CHARACTER}" not in told
        ids = ids[size:]
    assert told + decoder.flush() == text


@given(st.binary(max_size=24).filter(lambda b: EOS not in b), st.data())
def test_bytes_that_are_no_text_come_out_as_decoded(ids: bytes, data: st.DataObject) -> None:
    decoder, told, left = IncrementalText(ByteCodec()), "", ids
    while left:
        size = data.draw(st.integers(1, len(left)))
        told += decoder.feed(tuple(left[:size]))
        left = left[size:]
    assert told + decoder.flush() == ids.decode(errors="replace")


def test_spaces_between_words_are_kept() -> None:
    decoder = IncrementalText(Words())
    assert [decoder.feed((i,)) for i in (1, 2, 3, 4)] == ["w1", " w2", " w3", " w4"]
    assert decoder.feed(()) == decoder.flush() == ""


def test_half_a_character_at_the_end() -> None:
    decoder = IncrementalText(ByteCodec())
    assert decoder.feed(tuple("é".encode()[:1])) == ""
    assert decoder.feed(()) == ""
    assert decoder.flush() == "\N{REPLACEMENT CHARACTER}"
