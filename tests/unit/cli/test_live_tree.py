"""The tree that `solve` prints: a fold over events, drawn in the terminal."""

import io
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.console import Console

from flashedge import events
from flashedge.cli.solve.live_tree import render
from flashedge.client.run_view import RunView, build_view, enqueue, fold, interrupt
from flashedge.events import Event
from tests.support.dashboard_rig import MCTS, live_items
from tests.support.made_run import build_step
from tests.support.story import RESULT, STORY

WIDTH = 80


def view_of(story: Iterable[Event]) -> RunView:
    view, number = RunView(), 0
    for event in story:
        number += not isinstance(event, events.Progress)
        view = fold(view, [(number, event)])
    return view


def grow(*texts: str) -> list[Event]:
    """The root's children 1, 2 and so on, each with its text."""
    children = tuple((i, i, i) for i in range(1, len(texts) + 1))
    steps = [build_step(i, text) for i, text in enumerate(texts, 1)]
    return [events.NodesExpanded(parent=0, depth=1, children=children), *steps]


def lines_of(view: RunView, **options: Any) -> list[list[str]]:
    """The words of the tree's lines, without the status."""
    return [line.split() for line in text_of(view, **options).splitlines()[1:]]


def text_of(view: RunView, **options: Any) -> str:
    console = Console(file=io.StringIO(), width=WIDTH, force_terminal=False)
    console.print(render(view, width=WIDTH, **options))
    return console.file.getvalue()  # type: ignore[attr-defined, no-any-return]


def test_waiting() -> None:
    view = enqueue(RunView(), "r", 3)
    assert (view.id, view.state) == ("r", "waiting")
    assert text_of(view) == "waiting in the queue, 3 before it\n"
    view = enqueue(view, "r", 0, 12.4)
    assert text_of(view) == "waiting in the queue, next, starts in about 12 s\n"
    view = fold(view, [(1, STORY[0])])
    assert (view.state, view.position, view.starts_in_s) == ("running", None, None)


def test_a_beam_run_says_how_far_it_is_from_its_first_level() -> None:
    view = fold(RunView(), live_items()[:180])
    status, scores = text_of(view, elapsed_s=2.0).splitlines()[:2]
    assert f"level {view.level} · 0/16 paths" in status
    assert f"{view.all_tokens:,} tokens · {view.all_tokens / 2:,.0f}/s · 2.0 s" in status
    assert scores.startswith("scores   best ")
    assert f"at level {view.level - 1}" in scores


def test_mcts_rows_show_visits_value_and_prior() -> None:
    text = text_of(fold(RunView(), live_items(MCTS)[:-80]), elapsed_s=2.0)
    assert "/12 rollouts" in text
    assert "s left" in text
    assert "N5  Q 0.89 P 1.00" in text


def test_a_path_that_ended_shows_its_answer_and_a_growing_one_its_tail() -> None:
    tail = events.Progress(tokens=((1, 30), (2, 2)), tails=((1, "and so 12 + 7 is"),))
    text = text_of(view_of([*STORY[:2], tail]))
    assert "30 tokens …and so 12 + 7 is" in text
    done = replace(build_step(1, "It is \\boxed{19}.", finish="stop"), answer="19")
    assert "→ 19 It is" in text_of(view_of([*STORY[:2], done]))


def test_an_interrupted_run_is_not_growing() -> None:
    status, line = text_of(interrupt(view_of(STORY[:3]))).splitlines()
    assert (status.startswith("interrupted"), "≈ 2 cut" in line) == (True, True)
    assert "growing" not in status + line
    assert "0 tokens" not in line


def test_nodes_share_a_line() -> None:
    text = text_of(view_of(STORY[:9]))
    for shown in ("0.90", "12 + 7 = 19.", "✗ 1 pruned (0.20)"):
        assert shown in text
    assert "18" not in text
    done = events.NodesMarked(status="complete", nodes=(1, 2, 3, 4))
    equal = view_of([*grow("A\n\n", "A", "B", "A"), done])
    assert lines_of(equal) == [["├", "✓", "×3", "A"], ["└", "✓", "B"]]
    assert len(lines_of(equal, every_node=True)) == 4
    assert lines_of(equal, with_tree=False) == []
    expand, first, second, *_ = grow("A", "B", *"····")
    pruned = events.NodesMarked(status="pruned", nodes=(1, 2))
    lines = lines_of(interrupt(view_of([expand, first, second, pruned])), every_node=True)
    assert [line[1:] for line in lines] == [["✗", "A"], ["✗", "B"], ["≈", "4", "cut"]]


def test_duplicates_share_the_line_of_the_node_that_goes_on() -> None:
    marked = {"duplicate": (3, 4, 5), "pruned": (1,), "active": (2,)}
    marks = [events.NodesMarked(status=status, nodes=nodes) for status, nodes in marked.items()]
    below = events.NodesExpanded(parent=2, depth=2, children=((6, 0, 6),))
    story = [*grow("B", "A", "A\n\n", "A", "B"), *marks, below, build_step(6, "C")]
    pruned, *others = lines_of(view_of(story))
    assert pruned == ["├", "✗", "1", "pruned,", "1", "duplicate"]
    assert others == [["●", "×3", "A"], ["·", "C"]]


@pytest.mark.parametrize("finish", ["step_limit", "unsure"])
def test_a_path_that_was_cut_is_not_complete(finish: str) -> None:
    cut = [build_step(3, "The answer", finish=finish) if e is STORY[10] else e for e in STORY]
    view = view_of(cut)
    assert (view.paths_done, view.paths_cut) == (1, 1)
    assert "0 complete · 1 cut before an answer" in text_of(view)
    assert "✓" not in text_of(view)


def test_finished() -> None:
    view = view_of(STORY)
    assert (view.state, view.chosen, view.paths_done) == ("finished", {1, 3}, 1)
    assert ("certainty 1.00" in text_of(view), "boxed{19}" in text_of(view)) == (True, True)
    distrusted = events.RunFinished(result={**RESULT, "trusted": False})
    first_line = text_of(view_of([*STORY[:-1], distrusted])).splitlines()[0]
    assert "low verifier score" in first_line
    assert "certainty" not in first_line
    assert build_view(RESULT).state == "finished"
    assert "12 + 7" in text_of(build_view(RESULT)), "the object of a finished run has it too"


def test_what_is_noted_of_a_run_that_goes_on_or_is_over() -> None:
    failed = events.RunFailed(error="engine died", code="engine_dead")
    restarted = events.EngineRestarted(engine="verifier", waited_s=1.25)
    assert "engine died" in text_of(view_of([*STORY[:4], failed]))
    assert "restarted in 1.2" in text_of(view_of([*STORY[:4], restarted]))


def test_the_fold_leaves_the_view_alone() -> None:
    view = view_of(STORY[:4])
    before = dict(view.nodes)
    fold(view, [(view.seq + 1, STORY[4])])
    assert view.nodes == before


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
def test_a_tree_fits_the_terminal_and_without_a_limit_has_every_living_node(
    story: list[Event], height: int
) -> None:
    view = view_of(story)
    living = sum(n.status not in ("pruned", "duplicate", "cancelled") for n in view.nodes.values())
    assert len(lines_of(view)) >= living - 1  # the root has none
    end = events.RunFinished(result={"choice": max(view.nodes)})
    for shown in (view, fold(view, [(view.seq + 1, end)])):
        lines = text_of(shown, height=height).splitlines()
        assert len(lines) <= max(height, 6)
        assert all(len(line) <= WIDTH for line in lines)


def test_a_tree_as_deep_as_a_search_may_go() -> None:
    story: list[Event] = [events.RunStarted(config={}, queue_s=0.0)]
    for node in range(2000):
        story.append(events.NodesExpanded(parent=node, depth=node, children=((node + 1, 0, 0),)))
    assert text_of(view_of(story), height=20).count("\n") <= 20
