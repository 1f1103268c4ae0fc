"""Windows are counted from the sequence's start, and each yields at least one token."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from flashedge.scheduling.determinism.replay_shape import ReplayShape

SHAPES = st.builds(
    lambda window, group, part: ReplayShape(
        window=window, group=group, prefill_windows=max(1, group // part)
    ),
    st.sampled_from((8, 16, 32, 64)),
    st.integers(1, 8),
    st.integers(1, 8),
)


@given(SHAPES, st.integers(1, 2000), st.integers(2, 500))
def test_the_window_holds_the_last_known_token(shape: ReplayShape, known: int, room: int) -> None:
    longest = known + room
    start, end = shape.find_window(known), shape.end_window(known, longest)
    assert start % shape.window == 0
    assert start < known <= end <= start + shape.window
    assert end < longest, "the last position of the context is never an input"


@given(SHAPES, st.integers(1, 2000), st.integers(0, 100))
def test_prefill_ends_where_the_window_begins(shape: ReplayShape, known: int, shared: int) -> None:
    """Whatever was found in the cache, and in chunks that one pass holds."""
    computed = min(shared * shape.window, shape.find_window(known))
    while computed < shape.find_window(known):
        end = shape.end_chunk(computed, known)
        assert 0 < end - computed <= shape.rows
        assert end % shape.window == 0
        computed = end
    assert computed == shape.find_window(known)


def test_a_shape_survives_json() -> None:
    shape = ReplayShape(window=64, group=4, prefill_windows=2)
    assert ReplayShape.from_json(shape.to_json()) == shape
    assert shape.rows == 256
