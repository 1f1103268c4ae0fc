"""A node of a tree as the dashboard sees it, and the words and marks for what became of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from flashedge.types import NodeId

ROOT = NodeId(0)
KEPT = frozenset({"active", "complete"})  # what the search goes on with, or answers with
DROPPED = frozenset({"pruned", "duplicate", "cancelled"})
MARKS: Mapping[str, str] = {
    "generating": "…",
    "generated": "·",
    "active": "●",
    "pruned": "✗",
    "duplicate": "≡",
    "complete": "✓",
    "cancelled": "–",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class SeenNode:
    """tokens: of the whole segment, 0 while it generates; scores: one a step; score: the path's."""

    id: NodeId
    parent: NodeId | None
    index: int = 0
    depth: int = 0
    status: str = "generating"
    tokens: int = 0
    text: str = ""
    scores: tuple[float, ...] = ()
    score: float | None = None
    finish: str = ""
