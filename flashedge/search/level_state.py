"""The state of a search that works in levels. Immutable; see `level` for the moves."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from flashedge.certainty.history import History
from flashedge.search.base import Command
from flashedge.search.tree import Tree
from flashedge.types import Granularity, Limits, NodeId

NOTHING = Granularity(max_tokens=0)
BUDGET = "budget"

Shares = tuple[tuple[NodeId, int], ...]
"""Who gets how many children: (parent, number of children) in the order of expansion."""


class Phase(StrEnum):
    GENERATE = "generate"
    SCORE = "score"
    CHECK = "check"  # between two levels, while answers are grouped for the policy
    CLUSTER = "cluster"
    DONE = "done"


@dataclass(frozen=True, slots=True, kw_only=True)
class PendingCheckpoint:
    """Where a policy would have been asked: paths that had ended, rollouts that were made,
    committed tokens."""

    complete: int
    rollouts: int
    tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class LevelState:
    """level: the nodes under way, ascending ids; missing: results of this phase still out;
    ended: nodes of the level whose path is known to end; complete: nodes that ended a path, then
    what is put to the vote, ascending ids; clustered: those of them whose answers were grouped;
    planned: the level that follows if the policy lets it; ask_at: the progress at which the policy is
    asked next; history: what it was told; rollouts (MCTS only): the nodes in which rollouts ended,
    in their order; passed: the checkpoints of a run without a policy, read when it is over;
    cut_by: see `Finish`.
    """

    tree: Tree
    limits: Limits
    phase: Phase = Phase.GENERATE
    level: tuple[NodeId, ...] = ()
    missing: int = 0
    ended: int = 0
    complete: tuple[NodeId, ...] = ()
    clustered: tuple[NodeId, ...] = ()
    planned: Shares = ()
    ask_at: int = 0
    history: History = ()
    rollouts: tuple[NodeId, ...] = ()
    passed: tuple[PendingCheckpoint, ...] = ()
    cut_by: str | None = None

    def room(self, node: NodeId) -> int:
        """Tokens that the path of `node` may still hold."""
        at = self.tree[node]
        if at.segment is None and at.parent is not None:
            at = self.tree[at.parent]
        return max(0, self.limits.max_path_tokens - at.path_tokens)

    @property
    def over_budget(self) -> bool:
        budget = self.limits.token_budget
        return budget is not None and self.tree.committed_tokens >= budget


Move = tuple[LevelState, tuple[Command, ...]]
