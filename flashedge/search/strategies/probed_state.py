"""The immutable state of a probed chain of thought."""

from __future__ import annotations

from dataclasses import dataclass

from flashedge.certainty.history import History
from flashedge.search.base import Command
from flashedge.search.no_flights import NoFlights
from flashedge.search.tree import ROOT, Tree
from flashedge.search.voting_state import Phase
from flashedge.types import Limits, NodeId


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbedState(NoFlights):
    tree: Tree
    limits: Limits
    phase: Phase = Phase.GENERATE
    leaf: NodeId = ROOT
    """The newest node."""
    probe: NodeId | None = None
    """The node whose probe is running."""
    answers: tuple[str | None, ...] = ()
    """(num_probes,) the first member of each answer's group. None: no answer, or a doubtful one."""
    history: History = ()
    """A checkpoint for each probe."""
    asked: History = ()
    """The checkpoints at which the policy was asked."""
    ask_at: int = 1
    """Number of probes at which it is asked next."""
    cut_by: str | None = None
    """See `Finish`."""
    rollouts: tuple[NodeId, ...] = ()
    """Always empty: a chain has no rollouts."""

    @property
    def is_over_budget(self) -> bool:
        budget = self.limits.token_budget
        return budget is not None and self.tree.committed_tokens >= budget

    @property
    def remaining_tokens(self) -> int:
        """Tokens that may still be added to the chain."""
        return max(0, self.limits.max_path_tokens - self.tree[self.leaf].path_tokens)


Move = tuple[ProbedState, tuple[Command, ...]]
"""A new state and the commands that follow from it."""
