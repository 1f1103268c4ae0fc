"""A node of a run's tree as a watcher sees it, with the words and marks for its status."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from flashedge.types import NodeId

ROOT = NodeId(0)
CUT = "cut"
"""Status of a node that was still generating when its run ended. Only watchers use it."""

ALIVE = frozenset({"generating", "generated", "active"})
KEPT = frozenset({"active", "complete"})
"""Statuses of nodes that the search continues from, or answers with."""

DROPPED = frozenset({"pruned", "duplicate", "cancelled", CUT})
MARKS: Mapping[str, str] = {
    "generating": "…",
    "generated": "·",
    "active": "●",
    "pruned": "✗",
    "duplicate": "≡",
    "complete": "✓",
    "cancelled": "–",
    CUT: "≈",
}
MEANINGS: Mapping[str, str] = {
    "generating": "it generates",
    "generated": "not judged yet",
    "active": "kept",
    "pruned": "the search did not continue it",
    "duplicate": "the same text as a sibling",
    "complete": "the path ends here",
    "cancelled": "the search had no more use for it",
    CUT: "stopped by a token limit or the run's end before it had an answer",
}
"""What each mark says, for a legend."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeView:
    """One segment of a path, as far as the events describe it."""

    id: NodeId
    parent: NodeId | None
    index: int = 0
    depth: int = 0
    status: str = "generating"
    """A `search.tree.NodeStatus`, or `CUT`."""

    tokens: int = 0
    """Tokens of the whole segment. 0 until its end: growing nodes are counted in the run's view."""

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
    """Mean log-probability of the segment's tokens."""

    @property
    def kind(self) -> str:
        """What the marks tell apart: the status, but a path that ended is complete before its level
        is decided, and `CUT` where a token limit ended it."""
        if self.is_cut:
            return CUT
        return "complete" if self.ends_path else self.status

    @property
    def mark(self) -> str:
        """The sign of its kind."""
        return MARKS.get(self.kind, "?")

    @property
    def is_cut(self) -> bool:
        """Whether a token limit ended the path before it had an answer."""
        return self.ends_path and self.finish in ("length", "step_limit") and self.answer is None

    @property
    def ends_path(self) -> bool:
        """Whether nothing can follow this node: the path is finished."""
        return self.status == "complete" or (
            self.status == "generated" and self.finish in ("stop", "length")
        )
