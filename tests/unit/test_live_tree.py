"""The tree that a watcher sees: a fold over events, and what is printed of it."""

from __future__ import annotations

import io
from functools import reduce

import pytest
from fake_daemon import RESULT, STORY
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.console import Console

from flashedge import events
from flashedge.cli.solve.live_tree import render
from flashedge.cli.solve.tree_view import TreeView, fold, from_result
from flashedge.client.sync_client import Queued
from flashedge.events import Event

WIDTH = 80


def view_of(story: list[Event]) -> TreeView:
    return reduce(fold, story, TreeView())


def text_of(view: TreeView, height: int | None = None) -> str:
    console = Console(file=io.StringIO(), width=WIDTH, force_terminal=False)
    console.print(render(view, width=WIDTH, height=height))
    return console.file.getvalue()  # type: ignore[attr-defined, no-any-return]


def test_waiting() -> None:
    view = fold(TreeView(), Queued(id="r", position=3))
    assert (view.run, view.state) == ("r", "waiting")
    assert "3 before it" in text_of(view)


def test_growing() -> None:
    view = view_of(STORY[:3])
    assert (view.state, view.alive, view.tokens) == ("running", 2, 5)
    assert "3 tokens" in text_of(view)


def test_pruned_siblings_share_a_line() -> None:
    text = text_of(view_of(STORY[:9]))
    assert "0.90" in text
    assert "12 + 7 = 19." in text
    assert "✗ 1 pruned (0.20)" in text
    assert "18" not in text


def test_finished() -> None:
    view = view_of(STORY)
    assert view.state == "finished"
    assert view.chosen == {1, 3}
    assert view.complete == 1
    text = text_of(view)
    assert "certainty 1.00" in text
    assert "boxed{19}" in text


@pytest.mark.parametrize(
    ("event", "state", "said"),
    [
        (events.RunFailed(error="engine died", code="engine_dead"), "failed", "engine died"),
        (events.RunCancelled(reason="by hand"), "cancelled", "by hand"),
        (events.EngineRestarted(engine="verifier", waited_s=1.25), "running", "is back after 1.2"),
    ],
)
def test_ends_and_notes(event: Event, state: str, said: str) -> None:
    view = view_of([*STORY[:4], event])
    assert view.state == state
    assert said in text_of(view)


def test_unknown_nodes_change_nothing() -> None:
    view = view_of(STORY[:2])
    for event in (
        events.NodeScored(node=77, scores=(0.1,), score=0.1),
        events.NodesMarked(status="pruned", nodes=(77,)),
        events.Progress(tokens=((77, 3),)),
    ):
        assert fold(view, event).nodes == view.nodes


def test_the_fold_leaves_the_view_alone() -> None:
    view = view_of(STORY[:4])
    before = dict(view.nodes)
    fold(view, STORY[4])
    assert view.nodes == before


def test_a_finished_run_from_its_object() -> None:
    view = from_result(RESULT)
    assert view.state == "finished"
    assert "12 + 7" in text_of(view)


def test_markup_in_a_models_text_is_text() -> None:
    step = STORY[3]
    assert isinstance(step, events.StepCompleted)
    hostile = events.StepCompleted(
        node=step.node,
        token_ids=step.token_ids,
        logprobs=step.logprobs,
        text="[bold]x[/nope] [red]",
        steps=step.steps,
        finish=step.finish,
    )
    assert "[bold]x[/nope] [red]" in text_of(view_of([*STORY[:3], hostile]))


@st.composite
def stories(draw: st.DrawFn) -> list[Event]:
    """Any growth: each level expands some of the nodes so far and ends some."""
    story: list[Event] = [events.RunStarted(config={}, queue_s=0.0)]
    count = 1
    for _ in range(draw(st.integers(0, 12))):
        parent = draw(st.integers(0, count - 1))
        made = draw(st.integers(1, 6))
        children = tuple((count + i, i, i) for i in range(made))
        story.append(events.NodesExpanded(parent=parent, depth=1, children=children))
        status = draw(st.sampled_from(["active", "pruned", "complete", "duplicate", "cancelled"]))
        marked = tuple(draw(st.lists(st.integers(1, count + made - 1), max_size=4)))
        story.append(events.NodesMarked(status=status, nodes=marked))
        count += made
    return story


@settings(max_examples=60, deadline=None)
@given(stories(), st.integers(5, 30))
def test_never_taller_than_the_terminal_nor_wider(story: list[Event], height: int) -> None:
    view = view_of(story)
    for event in (None, events.RunFinished(result={"choice": max(view.nodes)})):
        shown = view if event is None else fold(view, event)
        lines = text_of(shown, height).splitlines()
        assert len(lines) <= max(height, 6)
        assert all(len(line) <= WIDTH for line in lines)


@settings(max_examples=40, deadline=None)
@given(stories())
def test_every_living_node_has_its_line(story: list[Event]) -> None:
    view = view_of(story)
    lines = text_of(view).count("\n") - 1
    living = sum(n.status not in ("pruned", "duplicate", "cancelled") for n in view.nodes.values())
    assert lines >= living - 1  # the root has none


def test_a_tree_as_deep_as_a_search_may_go() -> None:
    story: list[Event] = [events.RunStarted(config={}, queue_s=0.0)]
    for node in range(2000):
        story.append(events.NodesExpanded(parent=node, depth=node, children=((node + 1, 0, 0),)))
    assert text_of(view_of(story), 20).count("\n") <= 20
