"""The order and the indentation of a tree's lines. Pure; texts are made only for seen lines."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from flashedge.tui.state.node import DROPPED, ROOT, SeenNode
from flashedge.tui.state.run import RunState
from flashedge.types import NodeId

MAX_LEAD = 24  # deeper trees keep this much indentation


@dataclass(frozen=True, slots=True, kw_only=True)
class TreeLine:
    """lead: the branches drawn before the node; hidden: nodes below it that have no line."""

    node: NodeId
    lead: str
    hidden: int = 0


def tree_lines(
    run: RunState,
    *,
    collapsed: frozenset[NodeId] = frozenset(),
    dropped: bool = True,
    wanted: str = "",
) -> tuple[TreeLine, ...]:
    """Lines from the top down.

    dropped: whether pruned nodes have a line; wanted: only nodes that hold this text, with what
    leads to them. One column of indentation a level.
    """
    children = _shown_children(run, dropped, wanted)
    lines: list[TreeLine] = []
    stack = [(c, "", i == 0) for i, c in enumerate(reversed(children.get(ROOT, ())))]
    while stack:
        node, indent, last = stack.pop()
        below = children.get(node, ())
        lead = (indent + ("└" if last else "├"))[-MAX_LEAD:]
        if node in collapsed and below:
            lines.append(TreeLine(node=node, lead=lead, hidden=_count(children, node)))
            continue
        lines.append(TreeLine(node=node, lead=lead))
        deeper = indent + (" " if last else "│")
        stack.extend((c, deeper, i == 0) for i, c in enumerate(reversed(below)))
    return tuple(lines)


def _shown_children(
    run: RunState, dropped: bool, wanted: str
) -> Mapping[NodeId, tuple[NodeId, ...]]:
    if dropped and not wanted:
        return run.children
    nodes = run.nodes
    shown = {n.id for n in nodes.values() if _matches(n, dropped, wanted.casefold())}
    for node in list(shown):
        at = nodes[node].parent
        while at is not None and at not in shown:
            shown.add(at)
            at = nodes[at].parent
    return {parent: tuple(c for c in below if c in shown) for parent, below in run.children.items()}


def _matches(node: SeenNode, dropped: bool, wanted: str) -> bool:
    if node.status in DROPPED and not dropped:
        return False
    return not wanted or wanted in node.text.casefold() or wanted == node.status


def _count(children: Mapping[NodeId, tuple[NodeId, ...]], node: NodeId) -> int:
    found, stack = 0, [node]
    while stack:
        below = children.get(stack.pop(), ())
        found += len(below)
        stack.extend(below)
    return found
