"""Notes the results of rollouts in flight as they arrive. Nothing is decided here."""

from __future__ import annotations

from dataclasses import replace

from flashedge.search.base import Generated, Score, Scored
from flashedge.search.flights import Flight, Stage
from flashedge.search.mcts.state import MctsState, Move
from flashedge.search.scoring import check_scores
from flashedge.search.tree import NodeStatus


def receive_segment(state: MctsState, result: Generated) -> Move:
    """Once all nodes of an expansion are generated, have them scored."""
    at = state.tree.nodes.get(result.node)
    if at is None or at.status is not NodeStatus.GENERATING:
        return state, ()
    state = replace(state, tree=state.tree.add_segment(result.node, result.segment))
    flight = state.flights[state.find_expander(at.parent)]
    if flight.outstanding > 1:
        return _change(state, replace(flight, outstanding=flight.outstanding - 1)), ()
    nodes = state.list_new_children(flight.node)
    scoring = replace(flight, stage=Stage.SCORING, outstanding=len(nodes))
    return _change(state, scoring), (Score(nodes=nodes),)


def receive_scores(state: MctsState, result: Scored) -> Move:
    """Once all nodes of an expansion are scored, its rollout is ready for its turn. Raises
    ValueError, changing nothing, for scores that don't fit the node's steps."""
    at = state.tree.nodes.get(result.node)
    if at is None or at.status is not NodeStatus.GENERATED or at.scores is not None:
        return state, ()
    flight = state.flights[state.find_expander(at.parent)]
    if flight.stage is not Stage.SCORING or at.segment is None:
        return state, ()
    check_scores(at, result.scores, "steps")
    state = replace(state, tree=state.tree.set_scores(result.node, result.scores))
    left = flight.outstanding - 1
    stage = Stage.SCORING if left else Stage.READY
    return _change(state, replace(flight, stage=stage, outstanding=left)), ()


def _change(state: MctsState, flight: Flight) -> MctsState:
    """Put the flight in the place of the one with its number."""
    flights = tuple(flight if f.number == flight.number else f for f in state.flights)
    return replace(state, flights=flights)
