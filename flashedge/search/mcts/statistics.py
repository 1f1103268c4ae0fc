"""What MCTS knows of the nodes of its tree. It is kept, not counted anew at each selection."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from flashedge.search.nodes import Vector
from flashedge.types import NodeId


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeStatistics:
    reward: float = 0.0
    """Aggregate of the scores of the path to the node. 1.0 at the root."""
    prior: float = 0.0
    """P(s, a): the node's share before it is visited."""
    visits: int = 0
    """N: ended rollouts through the node."""
    value: float = 0.0
    """Sum of the rewards of those rollouts."""
    in_flight: int = 0
    """O: rollouts in flight whose path holds the node."""
    is_closed: bool = False
    """Whether no rollout can reach a leaf through the node any more."""

    @property
    def expected_visits(self) -> int:
        """Ñ = N + O."""
        return self.visits + self.in_flight

    @property
    def mean(self) -> float:
        """Q: the mean reward of the rollouts through the node, its own before there is one."""
        return self.value / self.visits if self.visits else self.reward


class Statistics:
    """Immutable statistics of all nodes, by id. Methods that change something return a copy."""

    __slots__ = ("_nodes",)

    def __init__(self, nodes: Vector[NodeStatistics] | None = None) -> None:
        self._nodes = nodes or Vector((NodeStatistics(reward=1.0, prior=1.0),))

    def __len__(self) -> int:
        return len(self._nodes)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Statistics) and list(self._nodes) == list(other._nodes)

    __hash__ = None  # type: ignore[assignment]

    def __getitem__(self, node: NodeId) -> NodeStatistics:
        return self._nodes[node]

    def add(self, count: int) -> Statistics:
        """Append nodes of which nothing is known yet."""
        first = len(self._nodes)
        return Statistics(self._nodes.update((first + i, NodeStatistics()) for i in range(count)))

    def update(self, changes: Mapping[NodeId, NodeStatistics]) -> Statistics:
        return Statistics(self._nodes.update(sorted(changes.items())))

    def enter(self, path: Iterable[NodeId]) -> Statistics:
        """A rollout in flight goes through these nodes."""
        return self._shift(path, 1)

    def leave(self, path: Iterable[NodeId]) -> Statistics:
        """Undo `enter`."""
        return self._shift(path, -1)

    def visit(self, path: Iterable[NodeId], reward: float) -> Statistics:
        """A rollout through these nodes has ended."""
        return self.update(
            {
                node: replace(at, visits=at.visits + 1, value=at.value + reward)
                for node in path
                for at in (self[node],)
            }
        )

    def _shift(self, path: Iterable[NodeId], by: int) -> Statistics:
        return self.update(
            {
                node: replace(at, in_flight=at.in_flight + by)
                for node in path
                for at in (self[node],)
            }
        )
