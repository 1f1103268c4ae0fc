"""Generated ids become text while they arrive: whole characters, however the ids are cut."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from flashedge.runtime.drive.segments import IncrementalText
from tests.support.byte_codec import EOS, ByteCodec, Words


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
    """Whatever the bytes, what comes out in pieces is what the whole decodes to."""
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
