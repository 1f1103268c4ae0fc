"""Takes rollouts out of flight before they have ended."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import replace

from flashedge.search.base import Cancel
from flashedge.search.flights import Flight, Stage
from flashedge.search.mcts.selection import list_path
from flashedge.search.mcts.state import MctsState, Move
from flashedge.types import NodeId


def cancel_flights(state: MctsState, flights: Collection[Flight]) -> Move:
    """Drop these rollouts: undo their in-flight counts and cancel the nodes that they expand.

    What had arrived of these nodes is dropped too, so the tree does not depend on it.
    """
    nodes = list_flying_nodes(state, flights)
    statistics = state.statistics
    for flight in flights:
        statistics = statistics.leave(list_path(state.tree, flight.node))
    gone = {flight.number for flight in flights}
    left = tuple(flight for flight in state.flights if flight.number not in gone)
    state = replace(state, tree=state.tree.cancel(nodes), statistics=statistics, flights=left)
    return state, (Cancel(nodes=nodes),) if nodes else ()


def list_flying_nodes(state: MctsState, flights: Iterable[Flight]) -> tuple[NodeId, ...]:
    """The nodes that these rollouts generate or score, ascending ids."""
    expanders = (flight for flight in flights if flight.stage is not Stage.WAITING)
    return tuple(sorted(n for flight in expanders for n in state.list_new_children(flight.node)))


def choose_least(flights: Iterable[Flight], count: int) -> tuple[Flight, ...]:
    """Choose the rollouts of least reward. Ties: one that waits goes first, then the youngest.

    Ref: arXiv 2604.00510, Algorithm 1, line 14.
    """

    def rank(flight: Flight) -> tuple[float, bool, int]:
        return flight.reward, flight.stage is not Stage.WAITING, -flight.number

    return tuple(sorted(flights, key=rank)[: max(0, count)])
