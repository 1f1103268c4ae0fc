"""Events in words: many scores of a level share a line."""

from __future__ import annotations

import pytest

from flashedge import events
from flashedge.client.event_line import FEW_SCORES, sum_up_scores
from flashedge.client.run_fold import fold
from flashedge.client.run_view import LOG_LINES, ROOT, RunView
from flashedge.client.words import describe_wait, format_duration
from flashedge.events import Event
from flashedge.types import NodeId


def level(parent: int, depth: int, *nodes: int) -> events.NodesExpanded:
    children = tuple((NodeId(node), i, 0) for i, node in enumerate(nodes))
    return events.NodesExpanded(parent=NodeId(parent), depth=depth, children=children)


def score(node: int, value: float) -> events.NodeScored:
    return events.NodeScored(node=NodeId(node), scores=(value,), score=value)


def texts(story: list[Event]) -> list[str]:
    view = fold(RunView(), list(enumerate(story, 1)))
    return [line.text for line in sum_up_scores(view.log)]


def test_many_scores_of_a_level_share_a_line() -> None:
    found = texts(
        [
            level(ROOT, 1, *range(1, 7)),
            *(score(node, node / 10) for node in range(1, 7)),
            events.NodesMarked(status="active", nodes=(NodeId(6),)),
            level(6, 2, 7, 8),
            score(7, 0.25),
            score(8, 0.75),
        ]
    )
    assert found == [
        "node 0: 6 children from 1",
        "level 1: 6 scores, best 0.60, mean 0.35",
        "1 node active",
        "node 6: 2 children from 7",
        "node 7: score 0.25",
        "node 8: score 0.75",
    ]


def test_scores_of_two_levels_in_a_row_stay_apart() -> None:
    few = range(1, FEW_SCORES + 1)
    story: list[Event] = [level(ROOT, 1, *few), level(1, 2, *range(11, 17))]
    found = texts([*story, *(score(n, 0.5) for n in few), *(score(n, 1.0) for n in range(11, 17))])
    assert found[2:] == [
        *(f"node {node}: score 0.50" for node in few),
        "level 2: 6 scores, best 1.00, mean 1.00",
    ]


def test_scores_that_left_the_log_still_count() -> None:
    many = LOG_LINES + 100
    story: list[Event] = [level(ROOT, 1, *range(1, many + 1))]
    story += [score(node, 0.9 if node == 1 else 0.5) for node in range(1, many + 1)]
    assert texts(story) == [f"level 1: {many} scores, best 0.90, mean 0.50"]
    view, items = RunView(), list(enumerate(story, 1))
    for at in range(0, len(items), 7):
        view = fold(view, items[at : at + 7])
    assert view == fold(RunView(), items), "however the events arrive"


# ---------------------------------------------------------------- words


@pytest.mark.parametrize(
    ("position", "starts_in_s", "words"),
    [
        (2, 12.4, "2 before it, starts in about 12 s"),
        (0, 3700.0, "next, starts in about 1 h"),
        (0, 0.0, "next, starts in about a second"),
        (1, None, "1 before it"),
        (None, None, ""),
    ],
)
def test_a_wait_in_words(position: int | None, starts_in_s: float | None, words: str) -> None:
    assert describe_wait(position, starts_in_s) == words


def test_durations_have_one_unit() -> None:
    shown = [format_duration(s) for s in (0.2, 59.4, 61, 7300, 200_000)]
    assert shown == ["0 s", "59 s", "1 min", "2 h", "2 d"]
