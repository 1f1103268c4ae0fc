"""Generated ids become text and steps: whole characters, by each rule."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flashedge.runtime.drive.segments import IncrementalText, StepTexts
from flashedge.search.step_rules import build_rules
from flashedge.types import BLANK_LINE, MARKERS, STEP_RULES, TOKENS, TokenIds
from tests.support.byte_codec import EOS, ByteCodec, Words

PIECES = ["So 1.", "\n\n", " Wait", ", 2", "\n", " Hmm", "."]


class PieceCodec(ByteCodec):
    rules = build_rules(enumerate(PIECES))

    def decode(self, token_ids: Sequence[int]) -> str:
        return "".join(PIECES[i] for i in token_ids)


def split(codec: ByteCodec, rule: str, ids: TokenIds, *, to_end: bool = True) -> tuple[str, ...]:
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


@pytest.mark.parametrize("rule", [MARKERS, TOKENS])
def test_a_segment_that_is_one_step_stays_whole(rule: str) -> None:
    assert split(PieceCodec(), rule, (0, 1, 3), to_end=False) == ("So 1.\n\n, 2",)


def test_no_step_is_blank_and_no_character_is_cut() -> None:
    text = "a\n\n\n\n\n\nb€€"
    ids = tuple(text.encode())
    assert split(ByteCodec(), TOKENS, ids) == ("a\n\n\n\n\n", "\nb€€")
    for rule in STEP_RULES:
        assert split(PieceCodec(), rule, ()) == ("",)


TEXT = st.text(alphabet=st.sampled_from("a é€😀\n"), max_size=20).map(str.encode)
BYTES = st.binary(max_size=24).filter(lambda ids: EOS not in ids)


@given(TEXT | BYTES, st.data())
def test_text_is_whole_however_it_is_cut(ids: bytes, data: st.DataObject) -> None:
    """Bytes that are no text come out as the codec decodes them."""
    whole, decoder, told, left = ids.decode(errors="replace"), IncrementalText(ByteCodec()), "", ids
    while left:
        size = data.draw(st.integers(1, len(left)))
        told += decoder.feed(tuple(left[:size]))
        left = left[size:]
        if "\N{REPLACEMENT CHARACTER}" not in whole:
            assert whole.startswith(told), "no half of a character is told"
    assert told + decoder.flush() == whole


def test_spaces_between_words_are_kept() -> None:
    decoder = IncrementalText(Words())
    assert [decoder.feed((i,)) for i in (1, 2, 3, 4)] == ["w1", " w2", " w3", " w4"]
    assert decoder.feed(()) == decoder.flush() == ""


def test_half_a_character_at_the_end() -> None:
    decoder = IncrementalText(ByteCodec())
    assert decoder.feed(tuple("é".encode()[:1])) == ""
    assert decoder.feed(()) == ""
    assert decoder.flush() == "\N{REPLACEMENT CHARACTER}"
