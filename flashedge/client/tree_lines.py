"""The order and the indentation of a tree's lines, for the terminal and the dashboard. Pure.

Only branch points indent: below a node of which one child continues, that child stands in the
node's own column, after the siblings that end there. A chain of any depth takes one column.

    ● step 1
    ├ ✗ step 2, pruned
    ├ ≡ step 2, a duplicate
    ● step 2
    ├ ● step 3
    │ ✓ step 4
    └ ✗ step 3, pruned
"""

from collections.abc import Callable, Hashable, Mapping
from typing import NamedTuple

from flashedge.client.run_view import ROOT, NodeView, RunView
from flashedge.types import NodeId

MAX_LEAD = 20
"""Cells of indentation at most: deeper branches show `…` and the end of theirs."""

Children = Mapping[NodeId, tuple[NodeId, ...]]


class TreeLine(NamedTuple):
    """One line: a node, or siblings that share it."""

    node: NodeId
    lead: str
    members: tuple[NodeId, ...]
    """All nodes of the line, `node` included."""
    hidden: int = 0
    """Nodes below a collapsed node."""
    is_match: bool = False
    """Whether it holds the wanted text itself."""


class _TreeRow(NamedTuple):
    """A tuple, since thousands are made for each drawing."""

    members: tuple[NodeId, ...]
    lead: str
    below: str
    """What the lines of its children begin with."""


def tree_lines(
    view: RunView,
    *,
    collapsed: frozenset[NodeId] = frozenset(),
    hidden: frozenset[str] = frozenset(),
    wanted: str = "",
    group: Callable[[NodeView], Hashable] = lambda node: None,
) -> tuple[TreeLine, ...]:
    """Lines from the top down.

    hidden: statuses that have no line; wanted: only nodes that hold this text, with what leads to
    them; group: childless siblings with an equal key, unless None, share a line, whether or not
    they match.
    """
    wanted = wanted.casefold()
    children = _find_shown_children(view, hidden, wanted)
    siblings = _find_shown_children(view, hidden, "") if wanted else children
    lines: list[TreeLine] = []

    def build_rows(parent: NodeId, below: str) -> list[_TreeRow]:
        families = _group_siblings(view, children, siblings.get(parent, ()), group)
        if wanted:
            shown = set(children.get(parent, ()))
            families = [family for family in families if not shown.isdisjoint(family)]
        return _lay_out(children, families, below)

    stack = build_rows(ROOT, "")[::-1]
    while stack:
        row = stack.pop()
        node = row.members[0]
        shut = node in collapsed and bool(children.get(node))
        lines.append(
            TreeLine(
                node=node,
                lead=row.lead if len(row.lead) <= MAX_LEAD else f"…{row.lead[1 - MAX_LEAD :]}",
                members=row.members,
                hidden=_count_below(children, node) if shut else 0,
                is_match=bool(wanted) and any(_holds(view.nodes[m], wanted) for m in row.members),
            )
        )
        if not shut and children.get(node):
            stack.extend(reversed(build_rows(node, row.below)))
    return tuple(lines)


def _lay_out(children: Children, families: list[tuple[NodeId, ...]], below: str) -> list[_TreeRow]:
    """The rows of a node's children: those that end first, then those that continue."""
    if len(families) == 1:
        return [_TreeRow(families[0], lead=below, below=below)]
    ending = [f for f in families if not children.get(f[0])]
    continuing = [f for f in families if children.get(f[0])]
    if len(continuing) == 1:
        rows = [_TreeRow(members=f, lead=f"{below}├ ", below="") for f in ending]
        return [*rows, _TreeRow(members=continuing[0], lead=below, below=below)]
    ordered = [*ending, *continuing]
    return [
        _TreeRow(
            members=f,
            lead=below + ("└ " if f is ordered[-1] else "├ "),
            below=below + ("  " if f is ordered[-1] else "│ "),
        )
        for f in ordered
    ]


def _group_siblings(
    view: RunView,
    children: Children,
    siblings: tuple[NodeId, ...],
    group: Callable[[NodeView], Hashable],
) -> list[tuple[NodeId, ...]]:
    """Siblings that share a line. A group's first member is the one that continues, if one does."""
    families: dict[Hashable, list[NodeId]] = {}
    for node in siblings:
        key = group(view.nodes[node])
        alone = ("node", node)
        family = families.setdefault(alone if key is None else ("group", key), [])
        if not children.get(node):
            family.append(node)
        elif family and children.get(family[0]):
            families[alone] = [node]  # two that continue never share a line
        else:
            family.insert(0, node)
    return [tuple(family) for family in families.values()]


def _find_shown_children(view: RunView, hidden: frozenset[str], wanted: str) -> Children:
    if not hidden and not wanted:
        return view.children
    nodes = view.nodes
    kept = (n for n in nodes.values() if n.status not in hidden)
    shown = {n.id for n in kept if not wanted or _holds(n, wanted)}
    for node in list(shown):
        at = nodes[node].parent
        while at is not None and at not in shown:
            shown.add(at)
            at = nodes[at].parent
    return {p: tuple(c for c in below if c in shown) for p, below in view.children.items()}


def _holds(node: NodeView, wanted: str) -> bool:
    return wanted in node.text.casefold() or wanted == node.status


def _count_below(children: Children, node: NodeId) -> int:
    count, stack = 0, [node]
    while stack:
        below = children.get(stack.pop(), ())
        count += len(below)
        stack.extend(below)
    return count
