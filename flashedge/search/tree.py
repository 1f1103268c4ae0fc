"""The reasoning tree: an immutable map of nodes, each one generated segment of a path."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from types import MappingProxyType

from flashedge.search.nodes import Nodes
from flashedge.search.seeds import child_seed
from flashedge.types import NodeId, Segment, TokenIds

ROOT = NodeId(0)


class NodeStatus(StrEnum):
    """A node's life. The only transitions are those of `_NEXT`."""

    GENERATING = "generating"
    GENERATED = "generated"
    ACTIVE = "active"  # scored, in the running
    PRUNED = "pruned"
    DUPLICATE = "duplicate"  # same text as a sibling that was kept
    COMPLETE = "complete"  # the path ends here
    CANCELLED = "cancelled"


_S = NodeStatus
_NEXT: Mapping[NodeStatus, frozenset[NodeStatus]] = MappingProxyType(
    {
        _S.GENERATING: frozenset({_S.GENERATED, _S.CANCELLED}),
        _S.GENERATED: frozenset({_S.ACTIVE, _S.COMPLETE, _S.DUPLICATE, _S.CANCELLED}),
        _S.ACTIVE: frozenset({_S.PRUNED, _S.CANCELLED}),
        _S.PRUNED: frozenset(),
        _S.DUPLICATE: frozenset(),
        _S.COMPLETE: frozenset(),
        _S.CANCELLED: frozenset(),
    }
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """One segment of a path. `scores`: (num_steps,) in [0, 1], None until scored.

    path_tokens: generated tokens from below the root through this segment, 0 until generated.
    """

    id: NodeId
    parent: NodeId | None
    depth: int
    index: int
    seed: int
    status: NodeStatus
    segment: Segment | None = None
    scores: tuple[float, ...] | None = None
    answer: str | None = None
    path_tokens: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Tree:
    """All nodes of a run. Ids are handed out in the order of expansion, never of arrival."""

    nodes: Nodes = field(default_factory=Nodes)

    @classmethod
    def rooted(cls, seed: int) -> Tree:
        root = Node(id=ROOT, parent=None, depth=0, index=0, seed=seed, status=NodeStatus.ACTIVE)
        return cls(nodes=Nodes().updated((root,)))

    def __getitem__(self, node: NodeId) -> Node:
        return self.nodes[node]

    def expand(self, parent: NodeId, count: int) -> tuple[Tree, tuple[Node, ...]]:
        """Add `count` children of `parent`, in GENERATING."""
        above = self.nodes[parent]
        first, offset = len(self.nodes), len(self.nodes.children(parent))
        made = tuple(
            Node(
                id=NodeId(first + i),
                parent=parent,
                depth=above.depth + 1,
                index=offset + i,
                seed=child_seed(above.seed, above.depth, offset + i),
                status=NodeStatus.GENERATING,
            )
            for i in range(count)
        )
        return self._with(made), made

    def generated(self, node: NodeId, segment: Segment) -> Tree:
        moved = self._moved(node, NodeStatus.GENERATED)
        above = self.nodes[moved.parent].path_tokens if moved.parent is not None else 0
        total = above + len(segment.token_ids)
        return self._with((replace(moved, segment=segment, path_tokens=total),))

    def mark(self, changes: Mapping[NodeId, NodeStatus]) -> Tree:
        """Move nodes to new statuses. Raises ValueError on an illegal move, changing nothing."""
        return self._with(tuple(self._moved(n, s) for n, s in changes.items()))

    def scored(self, node: NodeId, scores: tuple[float, ...]) -> Tree:
        return self._with((replace(self.nodes[node], scores=scores),))

    def answered(self, answers: Mapping[NodeId, str | None]) -> Tree:
        return self._with(tuple(replace(self.nodes[n], answer=a) for n, a in answers.items()))

    # ------------------------------------------------------------ reading

    def path(self, node: NodeId) -> tuple[Node, ...]:
        """Nodes from below the root down to `node`."""
        found: list[Node] = []
        at: NodeId | None = node
        while at is not None and at != ROOT:
            found.append(self.nodes[at])
            at = self.nodes[at].parent
        return tuple(reversed(found))

    def children(self, node: NodeId) -> tuple[Node, ...]:
        return tuple(self.nodes[child] for child in self.nodes.children(node))

    def path_token_ids(self, node: NodeId) -> TokenIds:
        return tuple(t for n in self.path(node) if n.segment for t in n.segment.token_ids)

    def path_text(self, node: NodeId) -> str:
        return "".join(n.segment.text for n in self.path(node) if n.segment)

    def path_steps(self, node: NodeId) -> tuple[str, ...]:
        """Step texts of the path, one for each score."""
        return tuple(s for n in self.path(node) if n.segment for s in n.segment.steps)

    def path_scores(self, node: NodeId) -> tuple[float, ...]:
        """Scores of all steps of the path that are scored."""
        return tuple(s for n in self.path(node) if n.scores is not None for s in n.scores)

    @property
    def committed_tokens(self) -> int:
        """Generated tokens of all nodes."""
        return self.nodes.tokens

    # ------------------------------------------------------------ inner

    def _moved(self, node: NodeId, to: NodeStatus) -> Node:
        at = self.nodes[node]
        if to not in _NEXT[at.status]:
            raise ValueError(f"node {node}: {at.status} -> {to} is not a legal move")
        return replace(at, status=to)

    def _with(self, changed: tuple[Node, ...]) -> Tree:
        return Tree(nodes=self.nodes.updated(changed))
