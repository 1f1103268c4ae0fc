"""The immutable state of MCTS."""

from __future__ import annotations

from dataclasses import dataclass, field

from flashedge.search.base import Command
from flashedge.search.flights import Flight, Stage
from flashedge.search.mcts.statistics import Statistics
from flashedge.search.tree import NodeStatus
from flashedge.search.voting_state import Phase, VotingState
from flashedge.types import NodeId


@dataclass(frozen=True, slots=True, kw_only=True)
class MctsState(VotingState):
    statistics: Statistics = field(default_factory=Statistics)
    """Visits, values and in-flight counts of all nodes."""
    flights: tuple[Flight, ...] = ()
    """The rollouts in flight, in the order in which they came to their nodes."""
    allowance: int = 1
    """Most rollouts in flight."""
    num_launched: int = 0
    """Rollouts launched so far, whatever became of them."""
    turn: int = 0
    """How often results changed what selection sees: expansions that were taken, and checks."""
    changes: tuple[tuple[int, int], ...] = ()
    """(turn, allowance) of each `Allowance` so far. See `RolloutSearch.script`."""
    taken_tokens: int = 0
    """Tokens of those expansions. What arrived ahead of its turn does not count yet."""
    frontier: tuple[NodeId, ...] = ()
    """Nodes of the expansion that was taken last; at the end of the search also those that were in
    flight."""
    num_waits: int = 0
    """How often a rollout reached a node that another one was expanding."""
    num_cancelled: int = 0
    """Rollouts that a smaller allowance cancelled. Others are launched in their place."""
    num_futile: int = 0
    """Rollouts that ended because nothing below their node can be good enough. They count among
    n, but leave no visit."""
    num_viable: int = 1
    """Leaves that are not futile, if the search has a negative exit."""
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
        """Whether rollouts may be in flight."""
        return self.phase in (Phase.GENERATE, Phase.CHECK)

    @property
    def expanding(self) -> frozenset[NodeId]:
        """The nodes that rollouts in flight expand."""
        return frozenset(f.node for f in self.flights if f.stage is not Stage.WAITING)

    def find_expander(self, node: NodeId | None) -> int:
        """The index among `flights` of the rollout that expands `node`. Raises ValueError."""
        for i, flight in enumerate(self.flights):
            if flight.node == node and flight.stage is not Stage.WAITING:
                return i
        raise ValueError(f"no rollout expands node {node}")

    def list_new_children(self, node: NodeId) -> tuple[NodeId, ...]:
        """The children of a node that is being expanded, as far as they are open."""
        new = (NodeStatus.GENERATING, NodeStatus.GENERATED)
        return tuple(c.id for c in self.tree.children(node) if c.status in new)


Move = tuple[MctsState, tuple[Command, ...]]
"""A new state and the commands that follow from it."""
