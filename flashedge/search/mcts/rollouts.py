"""The state of MCTS: the rollouts in flight, and statistics of the nodes of its tree.

Results are noted here as they arrive. `strategies.mcts` decides what follows from them.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass, field, replace
from enum import StrEnum

from flashedge.search.base import Cancel, Command, Score
from flashedge.search.tree import ROOT, NodeStatus, Tree, Vector
from flashedge.search.voting import Phase, SearchState
from flashedge.types import NodeId


@dataclass(frozen=True, slots=True, kw_only=True)
class Allowance:
    """How many rollouts a search may have in flight from now on. It is told to the search like a
    result. A search that has more cancels those of least reward."""

    rollouts: int
    """At least 1."""
    of: int = 0
    """Rollouts that all runs may have together, for display. 0 if not known."""


class Stage(StrEnum):
    GENERATING = "generating"  # the children of its node are being generated
    SCORING = "scoring"  # they are being scored
    READY = "ready"  # they are scored, and the rollout waits for its turn
    WAITING = "waiting"  # another rollout expands its node


@dataclass(frozen=True, slots=True, kw_only=True)
class Flight:
    """A rollout that was launched and has not ended."""

    number: int
    """Rollouts are numbered from 0 in the order of their launch."""
    node: NodeId
    """The end of its path so far: the node that it expands, or at which it waits."""
    stage: Stage
    reward: float
    """Reward of that node when the rollout came to it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeStatistics:
    reward: float = 0.0
    """Aggregate of the scores of the path to the node. 1.0 at the root."""
    prior: float = 0.0
    """P(s, a): the node's share among its siblings before it is visited."""
    visits: int = 0
    """N: ended rollouts through the node."""
    reward_sum: float = 0.0
    """Sum of the rewards of those rollouts."""
    in_flight: int = 0
    """O: rollouts in flight whose path contains the node."""
    is_closed: bool = False
    """Whether no rollout can reach an open leaf through the node any more."""

    @property
    def expected_visits(self) -> int:
        """Ñ = N + O."""
        return self.visits + self.in_flight

    @property
    def mean(self) -> float:
        """Q: the mean reward of ended rollouts through the node. Before there is one, its own."""
        return self.reward_sum / self.visits if self.visits else self.reward


Statistics = Vector[NodeStatistics]


def enter(known: Statistics, path: Iterable[NodeId], count: int = 1) -> Statistics:
    """Count a rollout in flight at the nodes of its path. With a count of -1 it is removed."""
    return known.update(
        (node, replace(known[node], in_flight=known[node].in_flight + count)) for node in path
    )


def visit(known: Statistics, path: Iterable[NodeId], reward: float) -> Statistics:
    """Count an ended rollout at the nodes of its path."""
    changes: list[tuple[NodeId, NodeStatistics]] = []
    for node in path:
        at = known[node]
        new = replace(at, visits=at.visits + 1, reward_sum=at.reward_sum + reward)
        changes.append((node, new))
    return known.update(changes)


@dataclass(frozen=True, slots=True, kw_only=True)
class MctsState(SearchState):
    statistics: Statistics = field(
        default_factory=lambda: Vector((NodeStatistics(reward=1.0, prior=1.0),))
    )
    rollouts: tuple[NodeId, ...] = ()
    """The nodes in which rollouts ended, in order."""
    flights: tuple[Flight, ...] = ()
    """In the order in which they came to their nodes."""
    allowance: int = 1
    """Most rollouts in flight."""
    num_launched: int = 0
    turn: int = 0
    """How often results changed what selection sees: expansions that were taken, and checks. Given
    the same seed and the same allowances at the same turns, the search builds the same tree."""
    changes: tuple[tuple[int, int], ...] = ()
    """(turn, allowance) of each `Allowance` so far. See `Mcts.script`."""
    taken_tokens: int = 0
    """Tokens of the expansions that were taken. Results that wait for their turn do not count."""
    frontier: tuple[NodeId, ...] = ()
    """Nodes of the expansion that was taken last. At the end also those that were in flight."""
    num_waits: int = 0
    """How often a rollout reached a node that another one was expanding."""
    num_cancelled: int = 0
    """Rollouts that a smaller allowance cancelled. Others are launched in their place."""
    num_futile: int = 0
    """Rollouts that were cut. They count among n, but leave no visit."""
    num_viable: int = 1
    """Leaves that are not futile. Counted only if the search has a negative exit."""
    best_reward: float = 0.0
    """Largest reward of a path that ended."""
    has_cut_leaves: bool = False
    """Whether a leaf was closed because it is futile."""
    gave_up: bool = False
    """See `Finish.unlikely`."""

    @property
    def tokens(self) -> int:
        return self.taken_tokens

    @property
    def is_searching(self) -> bool:
        return self.phase in (Phase.GENERATE, Phase.CHECK)

    @property
    def expanding(self) -> frozenset[NodeId]:
        return frozenset(flight.node for flight in self.expanders)

    @property
    def expanders(self) -> list[Flight]:
        """The rollouts in flight that expand a node, in the order in which they came to it."""
        return [flight for flight in self.flights if flight.stage is not Stage.WAITING]

    def find_expander(self, node: NodeId) -> Flight:
        parent = self.tree[node].parent
        return next(flight for flight in self.expanders if flight.node == parent)

    def list_new_children(self, node: NodeId) -> tuple[NodeId, ...]:
        """The open children of a node that is being expanded."""
        new = (NodeStatus.GENERATING, NodeStatus.GENERATED)
        return tuple(c.id for c in self.tree.children(node) if c.status in new)

    def list_flying_nodes(self, flights: Iterable[Flight]) -> tuple[NodeId, ...]:
        """The nodes that these rollouts generate or score, ascending ids."""
        expanders = (flight for flight in flights if flight.stage is not Stage.WAITING)
        return tuple(sorted(n for flight in expanders for n in self.list_new_children(flight.node)))

    def add_flight(self, flight: Flight) -> MctsState:
        """Put a rollout in flight at its node, whose reward becomes its own."""
        reward = self.statistics[flight.node].reward
        return replace(
            self,
            statistics=enter(self.statistics, list_path(self.tree, flight.node)),
            flights=(*self.flights, replace(flight, reward=reward)),
        )

    def remove_flight(self, flight: Flight) -> MctsState:
        return replace(
            self,
            statistics=enter(self.statistics, list_path(self.tree, flight.node), -1),
            flights=tuple(f for f in self.flights if f.number != flight.number),
        )


Move = tuple[MctsState, tuple[Command, ...]]


def list_path(tree: Tree, node: NodeId) -> tuple[NodeId, ...]:
    """The nodes from the root to `node`, both included."""
    return (ROOT, *(at.id for at in tree.path(node)))


def note_result(state: MctsState, node: NodeId) -> Move:
    """Note that a node is generated, or scored. Once its whole expansion is generated, the nodes
    are sent to be scored; once all are scored, the rollout is ready."""
    flight = state.find_expander(node)
    nodes = state.list_new_children(flight.node)
    is_generating = flight.stage is Stage.GENERATING
    results = [state.tree[n].segment if is_generating else state.tree[n].scores for n in nodes]
    if None in results:
        return state, ()
    changed = replace(flight, stage=Stage.SCORING if is_generating else Stage.READY)
    commands = (Score(nodes=nodes),) if is_generating else ()
    flights = tuple(changed if f.number == flight.number else f for f in state.flights)
    return replace(state, flights=flights), commands


def cancel_flights(state: MctsState, flights: Collection[Flight]) -> Move:
    """Drop these rollouts: undo their in-flight counts and cancel the nodes that they generate or
    score. What had arrived of these nodes is dropped, so that timing does not change the tree."""
    nodes = state.list_flying_nodes(flights)
    for flight in flights:
        state = state.remove_flight(flight)
    state = replace(state, tree=state.tree.cancel(nodes))
    return state, (Cancel(nodes=nodes),) if nodes else ()


def choose_least(flights: Iterable[Flight], count: int) -> tuple[Flight, ...]:
    """Choose the `count` rollouts of least reward, none for a count below 1. In a tie one that
    waits comes first, then the one launched last. Ref: arXiv 2604.00510, Algorithm 1, line 14."""

    def rank(flight: Flight) -> tuple[float, bool, int]:
        return flight.reward, flight.stage is not Stage.WAITING, -flight.number

    return tuple(sorted(flights, key=rank)[: max(0, count)])
