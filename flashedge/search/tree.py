"""The reasoning tree: an immutable map of nodes, each one generated segment of a path."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Generic, TypeVar

from flashedge.types import NodeId, Segment, TokenIds

ROOT = NodeId(0)
T = TypeVar("T")
_CHUNK = 128  # items: see `Vector`
_MASK64 = (1 << 64) - 1

# ---------------------------------------------------------------- seeds


def mix64(*values: int) -> int:
    """Hash integers to 63 bits (SplitMix64 finalizer, chained). Stable across machines."""
    h = 0x9E3779B97F4A7C15
    for value in values:
        h = (h ^ (value & _MASK64)) & _MASK64
        h = (h + 0x9E3779B97F4A7C15) & _MASK64
        h = ((h ^ (h >> 30)) * 0xBF58476D1CE4E5B9) & _MASK64
        h = ((h ^ (h >> 27)) * 0x94D049BB133111EB) & _MASK64
        h ^= h >> 31
    return h >> 1


def child_seed(parent_seed: int, depth: int, index: int) -> int:
    """Seed of child `index` of a node at `depth`. Child 0 keeps its parent's seed. Noise is keyed
    by (seed, absolute position), so child 0 continues exactly as the parent would have: a draft may
    run past a step's end (arXiv 2509.00195 §4.1)."""
    return parent_seed if index == 0 else mix64(parent_seed, depth, index)


# ---------------------------------------------------------------- nodes


class NodeStatus(StrEnum):
    GENERATING = "generating"
    GENERATED = "generated"
    ACTIVE = "active"  # may be continued
    PRUNED = "pruned"
    DUPLICATE = "duplicate"  # its path has the same text as another one of its level
    COMPLETE = "complete"  # the path ends here
    CANCELLED = "cancelled"


_NEXT: Mapping[NodeStatus, tuple[NodeStatus, ...]] = {
    NodeStatus.GENERATING: (NodeStatus.GENERATED, NodeStatus.CANCELLED),
    NodeStatus.GENERATED: (
        NodeStatus.ACTIVE,
        NodeStatus.COMPLETE,
        NodeStatus.DUPLICATE,
        NodeStatus.CANCELLED,
    ),
    NodeStatus.ACTIVE: (NodeStatus.PRUNED, NodeStatus.CANCELLED),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    id: NodeId
    parent: NodeId | None
    depth: int
    """Steps from the root, which has depth 0."""
    index: int
    """Its position among the children of its parent."""
    seed: int
    status: NodeStatus
    segment: Segment | None = None
    scores: tuple[float, ...] | None = None
    """As in `base.Scored`. None until scored."""
    answer: str | None = None
    """The representative of the path's answer cluster, once answers are grouped."""
    confidence: float | None = None
    """How sure the model was of the path's tokens, where the search measures it."""
    path_tokens: int = 0
    """Generated tokens from the root through this segment. 0 until generated."""

    @property
    def num_tokens(self) -> int:
        """Tokens of the segment. 0 without one."""
        return 0 if self.segment is None else len(self.segment.token_ids)


# ---------------------------------------------------------------- storage


class Vector(Generic[T]):
    """An immutable sequence in chunks of 128. `update` shares the chunks that do not change: to set
    one of 20,000 items, it copies the 128 references in one chunk and those to all 157 chunks."""

    __slots__ = ("_chunks", "_size")

    def __init__(self, items: Iterable[T] = ()) -> None:
        everything = tuple(items)
        self._size = len(everything)
        self._chunks: tuple[tuple[T, ...], ...] = tuple(
            everything[i : i + _CHUNK] for i in range(0, self._size, _CHUNK)
        )

    def __len__(self) -> int:
        return self._size

    def __getitem__(self, index: int) -> T:
        if not 0 <= index < self._size:
            raise IndexError(index)
        return self._chunks[index // _CHUNK][index % _CHUNK]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Vector) and self._chunks == other._chunks

    def __iter__(self) -> Iterator[T]:
        for chunk in self._chunks:
            yield from chunk

    def list_changed(self, before: Vector[T]) -> Iterator[T]:
        """Yield the items that differ from an earlier version, by identity. Skips shared chunks."""
        for number, chunk in enumerate(self._chunks):
            known = before._chunks[number] if number < len(before._chunks) else ()
            if chunk is not known:
                for at, item in enumerate(chunk):
                    if at >= len(known) or item is not known[at]:
                        yield item

    def update(self, changes: Iterable[tuple[int, T]]) -> Vector[T]:
        """Return a copy with items set, in the order of `changes`. An index equal to the length
        appends. Raises IndexError for one beyond it."""
        changed: dict[int, list[T]] = {}
        size = self._size
        for index, item in changes:
            if not 0 <= index <= size:
                raise IndexError(index)
            at, offset = divmod(index, _CHUNK)
            if at not in changed:
                changed[at] = list(self._chunks[at]) if at < len(self._chunks) else []
            changed[at][offset : offset + 1] = [item]
            size = max(size, index + 1)
        chunks = list(self._chunks)
        for at in sorted(changed):
            chunks[at : at + 1] = [tuple(changed[at])]
        made: Vector[T] = Vector()
        made._chunks, made._size = tuple(chunks), size
        return made


class Nodes(Mapping[NodeId, Node]):
    """Immutable map of nodes by id. The ids have no gaps. It also indexes children and counts
    generated tokens."""

    __slots__ = ("_children", "_nodes", "tokens")

    def __init__(self) -> None:
        self._nodes: Vector[Node] = Vector()
        self._children: Vector[tuple[NodeId, ...]] = Vector()
        self.tokens = 0
        """Generated tokens of all nodes."""

    def __getitem__(self, node: NodeId) -> Node:
        try:
            return self._nodes[node]
        except (IndexError, TypeError):
            raise KeyError(node) from None

    def __len__(self) -> int:
        return len(self._nodes)

    def __iter__(self) -> Iterator[NodeId]:
        return map(NodeId, range(len(self._nodes)))

    def children(self, node: NodeId) -> tuple[NodeId, ...]:
        self[node]  # raises KeyError for an unknown node
        return self._children[node]

    def list_changed(self, before: Nodes) -> Iterator[Node]:
        return self._nodes.list_changed(before._nodes)

    def update(self, changed: Iterable[Node]) -> Nodes:
        """Return a copy with nodes added and replaced. Raises IndexError if an id leaves a gap."""
        changed = tuple(changed)
        size, tokens = len(self._nodes), self.tokens
        family: dict[int, tuple[NodeId, ...]] = {}
        for node in changed:
            before = self._nodes[node.id] if node.id < size else None
            tokens += node.num_tokens - (before.num_tokens if before else 0)
            if before is None:
                family[node.id] = ()
                if node.parent is not None:
                    known = family.get(node.parent)
                    siblings = self._children[node.parent] if known is None else known
                    family[node.parent] = (*siblings, node.id)
        made = Nodes()
        made._nodes = self._nodes.update((n.id, n) for n in changed)
        made._children = self._children.update(sorted(family.items())) if family else self._children
        made.tokens = tokens
        return made


@dataclass(frozen=True, slots=True, kw_only=True)
class Tree:
    """All nodes of a run. Ids follow the order of expansion, never of arrival."""

    nodes: Nodes = field(default_factory=Nodes)

    @classmethod
    def from_seed(cls, seed: int) -> Tree:
        root = Node(id=ROOT, parent=None, depth=0, index=0, seed=seed, status=NodeStatus.ACTIVE)
        return cls(nodes=Nodes().update((root,)))

    def __getitem__(self, node: NodeId) -> Node:
        return self.nodes[node]

    def expand(self, parent: NodeId, count: int) -> tuple[Tree, tuple[Node, ...]]:
        """Add `count` children to a node. The second value holds them."""
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
        empty = (
            replace(node, segment=None, scores=None, confidence=None, path_tokens=0)
            for node in moved
        )
        return self._replace(tuple(empty))

    def set_scores(self, node: NodeId, scores: tuple[float, ...]) -> Tree:
        return self._replace((replace(self.nodes[node], scores=scores),))

    def set_confidence(self, node: NodeId, confidence: float) -> Tree:
        return self._replace((replace(self.nodes[node], confidence=confidence),))

    def set_answers(self, answers: Mapping[NodeId, str | None]) -> Tree:
        return self._replace(tuple(replace(self.nodes[n], answer=a) for n, a in answers.items()))

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

    def list_kept(self, node: NodeId) -> list[Node]:
        """The children that count: neither duplicates nor cancelled."""
        gone = (NodeStatus.DUPLICATE, NodeStatus.CANCELLED)
        return [child for child in self.children(node) if child.status not in gone]

    def path_token_ids(self, node: NodeId) -> TokenIds:
        return tuple(t for n in self.path(node) if n.segment for t in n.segment.token_ids)

    def path_text(self, node: NodeId) -> str:
        return "".join(n.segment.text for n in self.path(node) if n.segment)

    def path_steps(self, node: NodeId) -> tuple[str, ...]:
        return tuple(s for n in self.path(node) if n.segment for s in n.segment.steps)

    def path_scores(self, node: NodeId) -> tuple[float, ...]:
        return tuple(s for n in self.path(node) if n.scores is not None for s in n.scores)

    @property
    def committed_tokens(self) -> int:
        """Generated tokens of all nodes. Cancelled nodes have none."""
        return self.nodes.tokens

    def _move(self, node: NodeId, to: NodeStatus) -> Node:
        at = self.nodes[node]
        if to not in _NEXT.get(at.status, ()):
            raise ValueError(f"node {node}: {at.status} -> {to} is not a legal move")
        return replace(at, status=to)

    def _replace(self, changed: tuple[Node, ...]) -> Tree:
        return Tree(nodes=self.nodes.update(changed))
