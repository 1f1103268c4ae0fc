"""What the states of all searches have that vote among finished paths."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import StrEnum

from flashedge.certainty.history import History
from flashedge.search.tree import ROOT, NodeStatus, Tree
from flashedge.types import Granularity, Limits, NodeId

NOTHING = Granularity(max_tokens=0)
"""The granularity of a node whose path can't be continued."""
BUDGET = "budget"
"""The `cut_by` of a search that its token budget ended."""


class Phase(StrEnum):
    GENERATE = "generate"
    SCORE = "score"
    CHECK = "check"  # while answers are grouped for the policy
    CLUSTER = "cluster"  # at the end, while answers are grouped for the vote
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
class VotingState:
    tree: Tree
    limits: Limits
    phase: Phase = Phase.GENERATE
    complete: tuple[NodeId, ...] = ()
    """Nodes that ended a path, in the order in which the search took them. In the vote: the nodes
    that have a ballot."""
    clustered: tuple[NodeId, ...] = ()
    """The value of `complete` for which answers were last grouped."""
    ask_at: int = 0
    """Progress at which the policy is asked next."""
    history: History = ()
    """Checkpoints so far, oldest first."""
    pending_checkpoints: tuple[PendingCheckpoint, ...] = ()
    """Checkpoints of a run without a policy, to be taken when it ends."""
    rollouts: tuple[NodeId, ...] = ()
    """MCTS only: the nodes in which rollouts ended, in order."""
    cut_by: str | None = None
    """See `Finish`."""
    is_unboxed: bool = False
    """Whether the grouped answers are unboxed. See `Clustered`."""

    @property
    def tokens(self) -> int:
        """Committed tokens, as far as the search has decided about them."""
        return self.tree.committed_tokens

    @property
    def is_over_budget(self) -> bool:
        budget = self.limits.token_budget
        return budget is not None and self.tokens >= budget

    def remaining_tokens(self, node: NodeId) -> int:
        """Tokens that may still be added to the path of `node`."""
        at = self.tree[node]
        if at.segment is None and at.parent is not None:
            at = self.tree[at.parent]
        return max(0, self.limits.max_path_tokens - at.path_tokens)

    def best_unfinished(
        self, nodes: Iterable[NodeId], score: Callable[[NodeId], float]
    ) -> tuple[NodeId, ...]:
        """The best-scored path that has not ended, as one node; empty if there is none.

        It is one of `nodes`, or a parent none of whose children among them has a segment. Ties go
        to the longer path, then to the lower id.
        """
        tree, nodes = self.tree, tuple(nodes)
        generated = [n for n in nodes if tree[n].segment is not None]
        dropped = {NodeStatus.PRUNED, NodeStatus.DUPLICATE}
        live = {n for n in generated if tree[n].status not in dropped}
        parents = {p for n in nodes if (p := tree[n].parent) is not None and p != ROOT}
        live |= parents - {p for n in generated if (p := tree[n].parent) is not None}
        key = {n: (-score(n), -tree[n].depth, n) for n in live}
        return (min(live, key=key.__getitem__),) if live else ()
