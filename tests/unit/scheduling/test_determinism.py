"""Deterministic requests: the windows of their tokens, and which kind of step comes next."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flashedge.scheduling import determinism
from flashedge.scheduling.determinism import BatchState, PassShape, StepKind, choose_step

SHARED, PREFILL, VERIFY = StepKind.SHARED, StepKind.PREFILL, StepKind.VERIFY
NOTHING = dict.fromkeys(("can_prefill", "expects_window", "can_share", "has_others"), False)
IDLE = BatchState(**NOTHING, ready=0, waited=0, last=SHARED, last_pass=VERIFY)
BUSY = replace(IDLE, can_share=True, has_others=True)
DUE = replace(IDLE, can_prefill=True, ready=1, waited=determinism.MAX_WAIT)


@pytest.mark.parametrize(
    ("state", "kind"),
    [
        (IDLE, SHARED),
        (BUSY, SHARED),
        (replace(IDLE, can_prefill=True), PREFILL),
        (replace(BUSY, can_prefill=True), PREFILL),
        (replace(IDLE, ready=1), VERIFY),  # nothing else can run
        (replace(BUSY, ready=3, expects_window=True), SHARED),  # a fourth comes
        (replace(BUSY, ready=3), VERIFY),  # none comes
        (replace(BUSY, ready=4), VERIFY),
        (replace(BUSY, ready=1, expects_window=True, waited=determinism.MAX_WAIT), VERIFY),
        (replace(DUE, last=PREFILL, last_pass=PREFILL), VERIFY),  # the prompts found no room
    ],
)
def test_choices(state: BatchState, kind: StepKind) -> None:
    assert choose_step(state, group=4) is kind


@pytest.mark.parametrize(
    ("has_others", "turns"),
    [(True, [PREFILL, SHARED, VERIFY, SHARED] * 2), (False, [PREFILL, VERIFY] * 4)],
)
def test_passes_take_turns_and_others_get_a_step_between(
    has_others: bool, turns: list[StepKind]
) -> None:
    state, kinds = replace(BUSY, can_prefill=True, ready=9, has_others=has_others), []
    for _ in range(8):
        kind = choose_step(state, group=4)
        kinds.append(kind)
        last_pass = state.last_pass if kind is SHARED else kind
        state = replace(state, last=kind, last_pass=last_pass)
    assert kinds == turns


@st.composite
def shapes(draw: st.DrawFn) -> PassShape:
    group = draw(st.integers(1, 8))
    windows = max(1, group // draw(st.integers(1, 8)))
    window = draw(st.sampled_from((8, 16, 32, 64)))
    return PassShape(window=window, group=group, prefill_windows=windows)


@given(shapes(), st.integers(1, 2000), st.integers(2, 500))
def test_the_window_holds_the_last_known_token(shape: PassShape, known: int, room: int) -> None:
    longest = known + room
    start, end = shape.find_window(known), shape.end_window(known, longest)
    assert start % shape.window == 0
    assert start < known <= end <= start + shape.window
    assert end < longest, "the last position of the context is never an input"


@given(shapes(), st.integers(1, 2000), st.integers(0, 100))
def test_prefill_ends_where_the_window_begins(shape: PassShape, known: int, shared: int) -> None:
    computed = min(shared * shape.window, shape.find_window(known))
    while computed < shape.find_window(known):
        end = shape.end_chunk(computed, known)
        assert 0 < end - computed <= shape.rows
        assert end % shape.window == 0
        computed = end
    assert computed == shape.find_window(known)
