"""How a rollout finds the leaf that it goes on from."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from flashedge.search.mcts.puct import puct
from flashedge.search.mcts.statistics import NodeStatistics, Statistics
from flashedge.search.tree import ROOT, Node, NodeStatus, Tree
from flashedge.types import NodeId

_GONE = (NodeStatus.DUPLICATE, NodeStatus.CANCELLED)


def select_leaf(
    tree: Tree, statistics: Statistics, start: NodeId, expanding: Collection[NodeId], *, c: float
) -> NodeId | None:
    """Descend from `start` by WU-PUCT to a leaf or a node that is being expanded, ties to the older
    child. None if nothing below `start` is open.

    Ñ(s) is the sum of Ñ(s, a) over the children, so rollouts that wait at s do not count until they
    have chosen. With one rollout this is N(s).
    Ref: arXiv 2604.00510 §4.2 (WU-PUCT).
    """
    node = start
    if statistics[node].is_closed:
        return None
    while node not in expanding and (children := list_children(tree, node)):
        known = [(child.id, statistics[child.id]) for child in children]
        total = sum(at.expected_visits for _, at in known)
        ranked = [
            (-puct(at.mean, at.prior, visits=at.expected_visits, parent_visits=total, c=c), child)
            for child, at in known
            if not at.is_closed
        ]
        node = min(ranked)[1]
    return node


def list_children(tree: Tree, node: NodeId) -> list[Node]:
    """The children that count: neither duplicates nor cancelled."""
    return [child for child in tree.children(node) if child.status not in _GONE]


def close_node(tree: Tree, statistics: Statistics, node: NodeId) -> Statistics:
    """Close a node that leads to no open leaf, and all nodes above of which that is then true."""
    changes: dict[NodeId, NodeStatistics] = {node: replace(statistics[node], is_closed=True)}
    at: NodeId | None = tree[node].parent
    while at is not None:
        below = list_children(tree, at)
        if not all(child.id in changes or statistics[child.id].is_closed for child in below):
            break
        changes[at] = replace(statistics[at], is_closed=True)
        at = tree[at].parent
    return statistics.update(changes)


def list_path(tree: Tree, node: NodeId) -> tuple[NodeId, ...]:
    """The nodes from the root to `node`, both included."""
    return (ROOT, *(at.id for at in tree.path(node)))
