"""Rollouts in flight, P against M and boosts, as watchers see them."""

from __future__ import annotations

import io

from rich.console import Console

from flashedge import events
from flashedge.cli.solve.live_tree import render
from flashedge.client.event_line import describe
from flashedge.client.run_figures import describe_flights, describe_progress, flights_through
from flashedge.client.run_fold import fold
from flashedge.client.run_view import ROOT, RunView
from flashedge.events import Event
from flashedge.types import NodeId
from tests.support.boost_rig import SPEC, run_boosted

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


def test_a_running_search_tells_its_rollouts_and_how_many_it_may_have() -> None:
    view = boosted_view()
    assert describe_progress(view) == "1/12 rollouts · 3 in flight, P 3/8"
    assert flights_through(view) == {ROOT: 3, ONE: 1, TWO: 2}
    assert view.boosts == 1


def test_the_tree_marks_where_rollouts_are() -> None:
    console = Console(width=80, record=True, file=io.StringIO())
    console.print(render(boosted_view(), width=80, every_node=True))
    lines = console.export_text().splitlines()
    assert "3 in flight, P 3/8" in lines[0]
    assert any("N1+1" in line for line in lines)
    assert any("N0+2" in line for line in lines)
    assert all(len(line) <= 80 for line in lines)


def test_a_search_that_is_over_tells_its_boosts_and_cancels() -> None:
    view = boosted_view(
        events.RolloutsAllowed(turn=6, rollouts=1, of=2),
        events.RolloutsInFlight(flights=((1, ONE),), cancelled=2),
        events.RolloutsAllowed(turn=9, rollouts=2, of=3),
        events.RunFinished(result={"answer": "4"}),
    )
    assert describe_flights(view) == "2 boosts, 2 rollouts cancelled"
    assert not flights_through(view)


def test_tokens_of_cancelled_nodes_are_not_committed() -> None:
    ran = run_boosted(SPEC, 1)
    view = fold(RunView(), enumerate(ran.events, start=1))
    assert any(node.status == "cancelled" for node in view.nodes.values())
    assert view.tokens == ran.tree.committed_tokens
    assert view.boosts > 0


def test_rollouts_that_were_cut_count_among_those_that_are_over() -> None:
    cut = events.RolloutsEnded(nodes=(), futile=2)
    assert describe_progress(boosted_view(cut)).startswith("3/12 rollouts")
    assert describe(cut) == "2 futile rollouts cut"
    both = events.RolloutsEnded(nodes=(ONE,), futile=1)
    assert describe(both) == "1 rollout ended in node 1, 1 futile rollout cut"


def test_a_serial_search_says_nothing_of_rollouts_in_flight() -> None:
    story = [events.RunStarted(config=CONFIG, queue_s=0.0), events.RolloutsEnded(nodes=(ROOT,))]
    view = fold(RunView(), enumerate(story, start=1))
    assert describe_progress(view) == "1/12 rollouts"
    assert describe_flights(view) == ""
