"""Stop strings: the outcome does not depend on where the text is cut."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flashedge.runtime.stopping import StopFilter


def run(stops: tuple[str, ...], pieces: list[str]) -> tuple[str, bool]:
    stop = StopFilter(stops)
    text = "".join(stop.push(p) for p in pieces) + stop.flush()
    return text, stop.stopped


@pytest.mark.parametrize(
    ("stops", "pieces", "expected"),
    [
        ((), ["a", "b"], ("ab", False)),
        (("END",), ["go E", "N", "D more"], ("go ", True)),
        (("END",), ["go EN", "O"], ("go ENO", False)),
        (("END",), ["go EN"], ("go EN", False)),
        (("\n\n",), ["a\n", "\nb"], ("a", True)),
        (("aab",), ["aa", "ab"], ("a", True)),
        (("x", "y"), ["1y2x"], ("1", True)),
        (("END",), ["END"], ("", True)),
    ],
)
def test_examples(stops: tuple[str, ...], pieces: list[str], expected: tuple[str, bool]) -> None:
    assert run(stops, pieces) == expected


def test_text_that_may_be_a_stop_is_held_and_no_more() -> None:
    stop = StopFilter(("END",))
    assert stop.push("abcE") == "abc"
    assert stop.push("x") == "Ex"


@given(
    stops=st.lists(st.text("ab", min_size=1, max_size=4), max_size=3).map(tuple),
    pieces=st.lists(st.text("abc", max_size=5), max_size=12),
)
def test_any_cut_gives_the_same(stops: tuple[str, ...], pieces: list[str]) -> None:
    whole = "".join(pieces)
    text, stopped = run(stops, pieces)
    assert (text, stopped) == run(stops, list(whole)) == run(stops, [whole])
    assert whole.startswith(text)
    assert stopped == any(s in whole for s in stops)
    if stopped:
        assert any(whole[len(text) :].startswith(s) for s in stops)
    else:
        assert text == whole
