"""The fold of a run: live in any chunks, with any Progress between, is the stored run."""

from __future__ import annotations

import itertools

from hypothesis import given, settings
from hypothesis import strategies as st

from flashedge.client.run_view import Numbered, RunView, fold
from flashedge.events import Progress
from flashedge.types import NodeId
from tests.support.dashboard_rig import live_items, stored_items

LIVE = live_items()
STORED = stored_items()
START = RunView(id="r")
WHOLE = fold(START, STORED)
NODES = [NodeId(n) for n in range(0, 120)]


def chunked(items: list[Numbered], cuts: list[int]) -> RunView:
    run = START
    edges = [0, *sorted(c % (len(items) + 1) for c in cuts), len(items)]
    for start, end in itertools.pairwise(edges):
        run = fold(run, items[start:end])
    return run


progress = st.builds(
    lambda tokens, tails: Progress(tokens=tuple(tokens.items()), tails=tuple(tails.items())),
    st.dictionaries(st.sampled_from(NODES), st.integers(0, 99), max_size=8),
    st.dictionaries(st.sampled_from(NODES), st.sampled_from(["a", "b", ""]), max_size=3),
)


@settings(max_examples=60, deadline=None)
@given(cuts=st.lists(st.integers(0, 10_000), max_size=40))
def test_live_in_any_chunks_is_the_stored_run(cuts: list[int]) -> None:
    assert chunked(LIVE, cuts) == WHOLE


@settings(max_examples=60, deadline=None)
@given(
    end=st.integers(0, len(STORED)),
    more=st.lists(st.tuples(st.integers(0, 10_000), progress), max_size=25),
    cuts=st.lists(st.integers(0, 10_000), max_size=12),
)
def test_chunks_do_not_matter_at_any_moment(
    end: int, more: list[tuple[int, Progress]], cuts: list[int]
) -> None:
    items: list[Numbered] = list(STORED[:end])
    for place, event in more:
        at = place % (len(items) + 1)
        items.insert(at, (items[at - 1][0] if at else 0, event))
    one_by_one = START
    for item in items:
        one_by_one = fold(one_by_one, [item])
    assert chunked(items, cuts) == one_by_one


@settings(max_examples=30, deadline=None)
@given(cut=st.integers(0, len(LIVE)), back=st.integers(0, 60))
def test_a_resumed_follower_may_see_events_twice(cut: int, back: int) -> None:
    run = fold(START, LIVE[:cut])
    assert fold(run, LIVE[max(cut - back, 0) :]) == WHOLE
