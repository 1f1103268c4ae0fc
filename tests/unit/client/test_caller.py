"""What a client's requests have in common."""

from __future__ import annotations

import json

from hypothesis import given
from hypothesis import strategies as st

from flashedge.client.protocol import make_sendable
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
