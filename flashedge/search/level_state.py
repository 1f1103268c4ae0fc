"""The immutable state of a search that works in levels. See `level` for its transitions."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum

from flashedge.certainty.history import History
from flashedge.search.base import Command
from flashedge.search.flights import Flight
from flashedge.search.tree import ROOT, NodeStatus, Tree
from flashedge.types import Granularity, Limits, NodeId

NOTHING = Granularity(max_tokens=0)
"""The granularity of a node whose path can't be continued."""
BUDGET = "budget"
"""The `cut_by` of a search that its token budget ended."""

Shares = tuple[tuple[NodeId, int], ...]
"""Pairs of (parent, number of children), in the order of expansion."""


class Phase(StrEnum):
    GENERATE = "generate"
    SCORE = "score"
    CHECK = "check"  # between two levels, while answers are grouped for the policy
    CLUSTER = "cluster"  # after the last level, while answers are grouped for the vote
    DONE = "done"


@dataclass(frozen=True, slots=True, kw_only=True)
class PendingCheckpoint:
    """Where a policy would have been asked in a run that has none. It becomes a `Checkpoint` when
    the answers are grouped at the end of the run."""

    complete: int
    """Finished paths."""
    rollouts: int
    """Finished rollouts."""
    tokens: int
    """Committed tokens."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LevelState:
    tree: Tree
    limits: Limits
    phase: Phase = Phase.GENERATE
    level: tuple[NodeId, ...] = ()
    """Nodes of the current level, ascending ids."""
    outstanding: int = 0
    """Results of this phase that have not arrived."""
    num_ended: int = 0
    """Nodes of the level whose path is known to end there."""
    complete: tuple[NodeId, ...] = ()
    """Nodes that ended a path, ascending ids. In the vote: the nodes that have a ballot."""
    clustered: tuple[NodeId, ...] = ()
    """The value of `complete` for which answers were last grouped."""
    planned: Shares = ()
    """The next level, while the policy decides whether it runs."""
    ask_at: int = 0
    """Progress at which the policy is asked next."""
    history: History = ()
    """Checkpoints so far, oldest first."""
    pending_checkpoints: tuple[PendingCheckpoint, ...] = ()
    """Checkpoints of a run without a policy, to be taken when it ends."""
    rollouts: tuple[NodeId, ...] = ()
    """MCTS only: the nodes in which rollouts ended, in order."""
    flights: tuple[Flight, ...] = ()
    """Always empty: a level has no rollouts."""
    turn: int = 0
    """Always 0."""
    cut_by: str | None = None
    """See `Finish`."""

    def remaining_tokens(self, node: NodeId) -> int:
        """Tokens that may still be added to the path of `node`."""
        at = self.tree[node]
        if at.segment is None and at.parent is not None:
            at = self.tree[at.parent]
        return max(0, self.limits.max_path_tokens - at.path_tokens)

    @property
    def is_over_budget(self) -> bool:
        budget = self.limits.token_budget
        return budget is not None and self.tree.committed_tokens >= budget

    def best_unfinished(self, score: Callable[[NodeId], float]) -> tuple[NodeId, ...]:
        """The best-scored path that has not ended, as one node; empty if there is none.

        It is a node of the level, or a parent none of whose children has a segment. Ties go to the
        longer path, then to the lower id.
        """
        tree = self.tree
        generated = [n for n in self.level if tree[n].segment is not None]
        dropped = {NodeStatus.PRUNED, NodeStatus.DUPLICATE}
        live = {n for n in generated if tree[n].status not in dropped}
        parents = {p for n in self.level if (p := tree[n].parent) is not None and p != ROOT}
        live |= parents - {p for n in generated if (p := tree[n].parent) is not None}
        key = {n: (-score(n), -tree[n].depth, n) for n in live}
        return (min(live, key=key.__getitem__),) if live else ()


Move = tuple[LevelState, tuple[Command, ...]]
"""A new state and the commands that follow from it."""
