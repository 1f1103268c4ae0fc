"""A run and its nodes as a watcher sees them (`run_fold.fold`), with words and marks for
statuses."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

from flashedge.client.event_line import EventLine
from flashedge.types import NodeId

LOG_LINES = 400
OVER = frozenset({"finished", "failed", "cancelled", "interrupted"})

ROOT = NodeId(0)
CUT = "cut"
"""Status of a node that still generated when its run ended. Only watchers use it."""

KEPT = frozenset({"active", "complete"})
"""Statuses of nodes that the search continues from, or answers with."""

DROPPED = frozenset({"pruned", "duplicate", "cancelled", CUT})
_STATUSES = {
    "generating": ("…", "it generates"),
    "generated": ("·", "not judged yet"),
    "active": ("●", "kept"),
    "pruned": ("✗", "the search did not continue it"),
    "duplicate": ("≡", "the same text as a sibling"),
    "complete": ("✓", "the path ends here"),
    "cancelled": ("–", "the search had no more use for it"),
    CUT: ("≈", "stopped by a token limit or the run's end before it had an answer"),
}
MARKS: Mapping[str, str] = {status: mark for status, (mark, _) in _STATUSES.items()}
MEANINGS: Mapping[str, str] = {status: meaning for status, (_, meaning) in _STATUSES.items()}


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeView:
    id: NodeId
    parent: NodeId | None
    index: int = 0
    depth: int = 0
    status: str = "generating"
    """A `search.tree.NodeStatus`, or `CUT`."""
    tokens: int = 0
    """Tokens of the whole segment. 0 until its end: growing nodes count in the run's view."""
    text: str = ""
    scores: tuple[float, ...] = ()
    """Scores of the segment's steps, each in [0, 1]."""
    score: float | None = None
    """Score of the whole path down to this node."""
    finish: str = ""
    """The segment's `FinishReason`, empty until its end."""
    answer: str | None = None
    """The answer that the path ends with, as the model wrote it."""
    mean_logprob: float = 0.0

    @property
    def kind(self) -> str:
        """The status, but a path that ended is complete before its level is decided, and `CUT`
        where a token limit ended it."""
        if self.is_cut:
            return CUT
        return "complete" if self.ends_path else self.status

    @property
    def mark(self) -> str:
        return MARKS.get(self.kind, "?")

    @property
    def is_cut(self) -> bool:
        """Whether a token limit ended the path before it had an answer."""
        return self.ends_path and self.finish in ("length", "step_limit") and self.answer is None

    @property
    def ends_path(self) -> bool:
        """Whether nothing can follow this node."""
        return self.status == "complete" or (
            self.status == "generated" and self.finish in ("stop", "length")
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class CertaintyPoint:
    tokens: int
    certainty: float | None
    answers: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ExitPoint:
    tokens: int
    reason: str


def _only_root() -> Mapping[NodeId, NodeView]:
    return MappingProxyType({ROOT: NodeView(id=ROOT, parent=None, status="active")})


def _empty() -> Mapping[Any, Any]:
    return MappingProxyType({})


@dataclass(frozen=True, slots=True, kw_only=True)
class RunView:
    id: str = ""
    state: str = "waiting"
    """waiting, running, finished, failed, cancelled or interrupted."""
    position: int | None = None
    starts_in_s: float | None = None
    """When it was expected to start, as the daemon said last."""
    seq: int = 0
    nodes: Mapping[NodeId, NodeView] = field(default_factory=_only_root)
    children: Mapping[NodeId, tuple[NodeId, ...]] = field(default_factory=_empty)
    growing: Mapping[NodeId, int] = field(default_factory=_empty)
    """Tokens so far of nodes that generate."""
    tails: Mapping[NodeId, str] = field(default_factory=_empty)
    """The end of the text so far of nodes that generate."""
    tokens: int = 0
    """Committed tokens: those of generated segments."""
    kept_tokens: int = 0
    level: int = 0
    """Depth of the newest expansion."""
    certainty: tuple[CertaintyPoint, ...] = ()
    rollouts: tuple[NodeId, ...] = ()
    futile_rollouts: int = 0
    """MCTS: further rollouts, which were cut."""
    flights: tuple[tuple[int, NodeId], ...] = ()
    """MCTS: (number, node) of the rollouts in flight."""
    allowed: tuple[int, int] | None = None
    """Boosted MCTS: rollouts that the run may have in flight, and that all runs may have together
    (0: not known)."""
    boosts: int = 0
    cancelled_rollouts: int = 0
    """Rollouts that were cancelled because the run may have fewer."""
    exit: ExitPoint | None = None
    config: Mapping[str, Any] = field(default_factory=_empty)
    queue_s: float = 0.0
    result: Mapping[str, Any] | None = None
    note: str | None = None
    """The latest news for a user: an error, a restart, an early exit."""
    latest: NodeId | None = None
    log: tuple[EventLine, ...] = ()
    """The newest `LOG_LINES` lines about steps, and as many about anything else."""
    event_counts: Mapping[str, int] = field(default_factory=_empty)

    @property
    def over(self) -> bool:
        return self.state in OVER

    @property
    def problem(self) -> str:
        """The last message of its conversation. Empty until it started."""
        messages = (self.config.get("problem") or {}).get("messages") or ()
        return str(messages[-1].get("content") or "") if messages else ""

    @property
    def all_tokens(self) -> int:
        """Committed tokens and those of nodes that still generate."""
        return self.tokens + sum(self.growing.values())

    @property
    def paths_done(self) -> int:
        return sum(n.ends_path for n in self.nodes.values())

    @property
    def paths_cut(self) -> int:
        return sum(n.is_cut for n in self.nodes.values())

    @property
    def is_distrusted(self) -> bool:
        return (self.result or {}).get("trusted") is False

    @property
    def is_unlikely(self) -> bool:
        return bool((self.result or {}).get("unlikely"))

    @property
    def depth(self) -> int:
        return max(n.depth for n in self.nodes.values())

    @property
    def best(self) -> NodeId | None:
        """The chosen path's end; while the run goes on, the kept leaf with the best score."""
        choice = (self.result or {}).get("choice")
        if isinstance(choice, int) and choice in self.nodes:
            return NodeId(choice)
        leaves = (n for n in self.nodes.values() if n.status in KEPT and n.score is not None)
        best = max(leaves, key=lambda n: (n.depth, n.score or 0.0, -n.id), default=None)
        return None if best is None else best.id

    @property
    def chosen(self) -> frozenset[NodeId]:
        """The nodes of the path that the run chose; empty until it has a result."""
        return frozenset() if self.result is None else frozenset(self.path(self.best))

    def path(self, node: NodeId | None) -> tuple[NodeId, ...]:
        """Ids from below the root down to `node`."""
        ids: list[NodeId] = []
        while node is not None and node != ROOT and node in self.nodes:
            ids.append(node)
            node = self.nodes[node].parent
        return tuple(reversed(ids))
