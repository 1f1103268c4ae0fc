"""What goes over the wire: bodies in Unicode, server-sent events, codes of errors."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flashedge import errors
from flashedge.client.protocol import Frame, FrameReader, make_sendable
from tests.support.hostile import acting_texts

values = st.recursive(
    acting_texts | st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False),
    lambda parts: st.lists(parts, max_size=3) | st.dictionaries(acting_texts, parts, max_size=3),
)


@given(values)
def test_a_body_can_be_encoded(value: object) -> None:
    json.dumps(make_sendable(value), ensure_ascii=False).encode()


@given(st.dictionaries(st.text(), st.lists(st.text() | st.integers())))
def test_valid_unicode_is_sent_as_it_is(value: object) -> None:
    assert make_sendable(value) == value


def test_half_surrogates_are_marked() -> None:
    body = {"problem": "caf\udce9", "messages": ({"content": "ok \ud83d"},), "n": 2}
    assert make_sendable(body) == {"problem": "caf�", "messages": [{"content": "ok �"}], "n": 2}


def test_the_codes_of_errors_are_distinct() -> None:
    codes = [kind.code for kind in errors.list_error_types()]
    assert len(codes) == len(set(codes))


@pytest.mark.parametrize("size", [1, 2, 3, 7, 1000])
@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_sse_frames_however_they_are_cut(size: int, end: str) -> None:
    text = (
        ": ping\n\nid: 4\nevent: a\ndata: {\ndata:  é\u2028}\n\ndata:x\n\nid: 9\n\ndata: unfinished"
    )
    raw = text.replace("\n", end).encode()
    reader = FrameReader()
    got = [frame for i in range(0, len(raw), size) for frame in reader.read(raw[i : i + size])]
    assert got == [
        Frame(event="a", data="{\n é\u2028}", id="4"),
        Frame(event="message", data="x", id=None),
    ]
