"""The reasoning tree: an immutable map of nodes, each one generated segment of a path."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from types import MappingProxyType

from flashedge.search.nodes import Nodes
from flashedge.search.seeds import child_seed
from flashedge.types import NodeId, Segment, TokenIds

ROOT = NodeId(0)


class NodeStatus(StrEnum):
    """The life cycle of a node. `_NEXT` holds the legal transitions."""

    GENERATING = "generating"
    GENERATED = "generated"
    ACTIVE = "active"  # scored, may be continued
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
    """One segment of a path."""

    id: NodeId
    parent: NodeId | None
    depth: int
    index: int
    """Position among the children of `parent`."""
    seed: int
    status: NodeStatus
    segment: Segment | None = None
    scores: tuple[float, ...] | None = None
    """(num_steps,) in [0, 1]. None until scored."""
    answer: str | None = None
    """The representative of the path's answer cluster, once answers are grouped."""
    path_tokens: int = 0
    """Generated tokens from the root through this segment. 0 until generated."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tree:
    """All nodes of a run. Ids follow the order of expansion, never of arrival. Methods that change
    something return a new tree."""

    nodes: Nodes = field(default_factory=Nodes)

    @classmethod
    def from_seed(cls, seed: int) -> Tree:
        """A tree that holds the root only."""
        root = Node(id=ROOT, parent=None, depth=0, index=0, seed=seed, status=NodeStatus.ACTIVE)
        return cls(nodes=Nodes().update((root,)))

    def __getitem__(self, node: NodeId) -> Node:
        return self.nodes[node]

    def expand(self, parent: NodeId, count: int) -> tuple[Tree, tuple[Node, ...]]:
        """Add `count` children of `parent` with status GENERATING."""
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
        return self._replace(made), made

    def add_segment(self, node: NodeId, segment: Segment) -> Tree:
        """Store what was generated for `node`. Raises ValueError unless it is GENERATING."""
        generated = self._move(node, NodeStatus.GENERATED)
        above = self.nodes[generated.parent].path_tokens if generated.parent is not None else 0
        total = above + len(segment.token_ids)
        return self._replace((replace(generated, segment=segment, path_tokens=total),))

    def mark(self, changes: Mapping[NodeId, NodeStatus]) -> Tree:
        """Move nodes to new statuses. Raises ValueError on an illegal move, changing nothing."""
        return self._replace(tuple(self._move(n, s) for n, s in changes.items()))

    def cancel(self, nodes: Iterable[NodeId]) -> Tree:
        """Mark nodes as cancelled and drop their segments, so that the tree doesn't depend on what
        had arrived. Raises ValueError on an illegal move, changing nothing."""
        moved = (self._move(node, NodeStatus.CANCELLED) for node in nodes)
        empty = (replace(node, segment=None, scores=None, path_tokens=0) for node in moved)
        return self._replace(tuple(empty))

    def set_scores(self, node: NodeId, scores: tuple[float, ...]) -> Tree:
        return self._replace((replace(self.nodes[node], scores=scores),))

    def set_answers(self, answers: Mapping[NodeId, str | None]) -> Tree:
        return self._replace(tuple(replace(self.nodes[n], answer=a) for n, a in answers.items()))

    # ------------------------------------------------------------ paths

    def path(self, node: NodeId) -> tuple[Node, ...]:
        """Nodes from the first one below the root to `node`."""
        nodes: list[Node] = []
        at: NodeId | None = node
        while at is not None and at != ROOT:
            nodes.append(self.nodes[at])
            at = self.nodes[at].parent
        return tuple(reversed(nodes))

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
        """Scores of the path's steps, as far as they are scored."""
        return tuple(s for n in self.path(node) if n.scores is not None for s in n.scores)

    @property
    def committed_tokens(self) -> int:
        """Generated tokens of all nodes."""
        return self.nodes.tokens

    # ------------------------------------------------------------ inner

    def _move(self, node: NodeId, to: NodeStatus) -> Node:
        at = self.nodes[node]
        if to not in _NEXT[at.status]:
            raise ValueError(f"node {node}: {at.status} -> {to} is not a legal move")
        return replace(at, status=to)

    def _replace(self, changed: tuple[Node, ...]) -> Tree:
        return Tree(nodes=self.nodes.update(changed))
