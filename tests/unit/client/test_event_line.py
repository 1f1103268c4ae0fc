"""Events in words: many scores of a level share a line."""

import io

from rich.console import Console

from flashedge import events
from flashedge.cli.solve.live_tree import render
from flashedge.client.event_line import FEW_SCORES, describe
from flashedge.client.run_figures import count_flights, describe_flights, describe_progress
from flashedge.client.run_view import LOG_LINES, ROOT, RunView, fold
from flashedge.client.words import describe_wait, format_duration
from flashedge.events import Event
from flashedge.types import NodeId
from tests.support.made_run import build_level as level
from tests.support.made_run import build_score as score


def texts(story: list[Event]) -> list[str]:
    view = fold(RunView(), enumerate(story, 1))
    return [line.text for line in view.log]


def test_many_scores_of_a_level_share_a_line() -> None:
    many = (score(node, node / 10) for node in range(1, 7))
    marked = events.NodesMarked(status="active", nodes=(NodeId(6),))
    few = level(6, 2, 7, 8), score(7, 0.25), score(8, 0.75)
    found = texts([level(ROOT, 1, *range(1, 7)), *many, marked, *few])
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


def test_a_level_of_any_size_takes_one_line_of_the_log() -> None:
    many = LOG_LINES + 100
    story: list[Event] = [level(ROOT, 1, *range(1, many + 1))]
    story += [score(node, 0.9 if node == 1 else 0.5) for node in range(1, many + 1)]
    assert texts(story) == [
        f"node 0: {many} children from 1",
        f"level 1: {many} scores, best 0.90, mean 0.50",
    ]


def test_waits_and_durations_in_words() -> None:
    assert describe_wait(2, 12.4) == "2 before it, starts in about 12 s"
    assert describe_wait(0, 3700.0) == "next, starts in about 1 h"
    assert describe_wait(0, 0.0) == "next, starts in about a second"
    assert (describe_wait(1, None), describe_wait(None, None)) == ("1 before it", "")
    shown = [format_duration(s) for s in (0.2, 59.4, 61, 7300, 200_000)]
    assert shown == ["0 s", "59 s", "1 min", "2 h", "2 d"]


ONE, TWO, THREE = NodeId(1), NodeId(2), NodeId(3)
CONFIG = {"strategy": "mcts", "n": 12, "options": {"boost": True}}


def boosted_view(*more: Event) -> RunView:
    story: list[Event] = [
        events.RunStarted(config=CONFIG, queue_s=0.0),
        events.NodesExpanded(parent=ROOT, depth=1, children=((ONE, 0, 5), (TWO, 1, 6))),
        events.RolloutsEnded(nodes=(ONE,)),
        events.RolloutsAllowed(turn=4, rollouts=3, of=8),
        events.NodesExpanded(parent=TWO, depth=2, children=((THREE, 0, 7),)),
        events.RolloutsInFlight(flights=((1, ONE), (2, TWO), (3, TWO)), cancelled=0),
        *more,
    ]
    return fold(RunView(id="run-1"), enumerate(story, start=1))


def test_a_running_search_tells_its_rollouts_and_the_tree_marks_where_they_are() -> None:
    view = boosted_view()
    assert describe_progress(view) == "1/12 rollouts · 3 in flight, P 3/8"
    assert count_flights(view) == {ROOT: 3, ONE: 1, TWO: 2}
    assert view.boosts == 1
    console = Console(width=80, record=True, file=io.StringIO())
    console.print(render(view, width=80, every_node=True))
    lines = console.export_text().splitlines()
    assert "3 in flight, P 3/8" in lines[0]
    assert any("N1+1" in line for line in lines)
    assert any("N0+2" in line for line in lines)
    assert all(len(line) <= 80 for line in lines)


def test_a_search_that_is_over_tells_its_boosts_and_a_serial_one_nothing_of_flights() -> None:
    view = boosted_view(
        events.RolloutsAllowed(turn=6, rollouts=1, of=2),
        events.RolloutsInFlight(flights=((1, ONE),), cancelled=2),
        events.RolloutsAllowed(turn=9, rollouts=2, of=3),
        events.RunFinished(result={"answer": "4"}),
    )
    assert describe_flights(view) == "2 boosts, 2 rollouts cancelled"
    assert not count_flights(view)
    story = [events.RunStarted(config=CONFIG, queue_s=0.0), events.RolloutsEnded(nodes=(ROOT,))]
    serial = fold(RunView(), enumerate(story, start=1))
    assert (describe_progress(serial), describe_flights(serial)) == ("1/12 rollouts", "")


def test_rollouts_that_were_cut_count_among_those_that_are_over() -> None:
    cut = events.RolloutsEnded(nodes=(), futile=2)
    assert describe_progress(boosted_view(cut)).startswith("3/12 rollouts")
    assert describe(cut) == "2 futile rollouts cut"
    both = events.RolloutsEnded(nodes=(ONE,), futile=1)
    assert describe(both) == "1 rollout ended in node 1, 1 futile rollout cut"
