"""The order and the indentation of a tree's lines, for the terminal and the dashboard.

Only branch points indent. If just one child of a node has children itself, it stands in the node's
own column, below its siblings. A chain of any depth takes one column.

    ● step 1
    ├ ✗ step 2, pruned
    ├ ≡ step 2, a duplicate
    ● step 2
    ├ ✗ step 3, pruned
    ● step 3
    ✓ step 4
"""

from collections.abc import Callable, Hashable, Mapping
from typing import NamedTuple

from flashedge.client.run_view import ROOT, NodeView, RunView
from flashedge.types import NodeId

MAX_LEAD = 20
"""Most cells of indentation; a deeper line shows `…` and the end of its own. Chosen by hand: it
leaves most of an 80-cell terminal to the text."""

Children = Mapping[NodeId, tuple[NodeId, ...]]


class TreeLine(NamedTuple):
    """A line for one node, or for siblings that share it."""

    node: NodeId
    """The first of `members`; only this one may have children."""
    lead: str
    """The indentation with its branches, as in `│ ├ `."""
    members: tuple[NodeId, ...]
    hidden: int = 0
    """Nodes below a collapsed node, which have no lines. 0 if it is not collapsed."""
    is_match: bool = False
    """Whether one of its nodes matches the search itself, not only a node below."""


class _TreeRow(NamedTuple):
    """The line of one family. A named tuple is made quickly, and a large tree needs thousands."""

    members: tuple[NodeId, ...]
    lead: str
    below: str
    """What the lines of its children begin with."""


def build_tree_lines(
    view: RunView,
    *,
    collapsed: frozenset[NodeId] = frozenset(),
    hidden: frozenset[str] = frozenset(),
    wanted: str = "",
    group: Callable[[NodeView], Hashable] = lambda node: None,
) -> tuple[TreeLine, ...]:
    """Build the lines of a tree from the top down, without the root.

    collapsed: nodes whose descendants have no lines.
    hidden: statuses of nodes that have no lines, unless a node below them has one.
    wanted: if not empty, only nodes with this text or status, and their ancestors, have lines.
    group: gives the key of a node; childless siblings with one key share a line, which is shown if
    any of them matches `wanted`. A node with the key None has its own line.
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
        is_shut = node in collapsed and bool(children.get(node))
        lines.append(
            TreeLine(
                node=node,
                lead=row.lead if len(row.lead) <= MAX_LEAD else f"…{row.lead[1 - MAX_LEAD :]}",
                members=row.members,
                hidden=_count_below(children, node) if is_shut else 0,
                is_match=bool(wanted) and any(_matches(view.nodes[m], wanted) for m in row.members),
            )
        )
        if not is_shut and children.get(node):
            stack.extend(reversed(build_rows(node, row.below)))
    return tuple(lines)


def _lay_out(children: Children, families: list[tuple[NodeId, ...]], below: str) -> list[_TreeRow]:
    """Lay out a node's children: first those without children, then the others."""
    if len(families) <= 1:
        return [_TreeRow(family, lead=below, below=below) for family in families]
    ending = [f for f in families if not children.get(f[0])]
    continuing = [f for f in families if children.get(f[0])]
    *others, last = [*ending, *continuing]
    rows = [_TreeRow(members=f, lead=f"{below}├ ", below=f"{below}│ ") for f in others]
    if len(continuing) == 1:
        return [*rows, _TreeRow(members=last, lead=below, below=below)]
    return [*rows, _TreeRow(members=last, lead=f"{below}└ ", below=f"{below}  ")]


def _group_siblings(
    view: RunView,
    children: Children,
    siblings: tuple[NodeId, ...],
    group: Callable[[NodeView], Hashable],
) -> list[tuple[NodeId, ...]]:
    """Divide siblings into lines. A node with children comes first in its line, and no other node
    of the line has any."""
    families: dict[Hashable, list[NodeId]] = {}
    for node in siblings:
        key = group(view.nodes[node])
        alone = ("node", node)
        family = families.setdefault(alone if key is None else ("group", key), [])
        if not children.get(node):
            family.append(node)
        elif family and children.get(family[0]):
            families[alone] = [node]
        else:
            family.insert(0, node)
    return [tuple(family) for family in families.values()]


def _find_shown_children(view: RunView, hidden: frozenset[str], wanted: str) -> Children:
    """Find the children of each node that match, or have a node below them that does."""
    if not hidden and not wanted:
        return view.children
    nodes = view.nodes
    kept = (n for n in nodes.values() if n.status not in hidden)
    shown = {n.id for n in kept if not wanted or _matches(n, wanted)}
    for node in list(shown):
        at = nodes[node].parent
        while at is not None and at not in shown:
            shown.add(at)
            at = nodes[at].parent
    return {p: tuple(c for c in below if c in shown) for p, below in view.children.items()}


def _matches(node: NodeView, wanted: str) -> bool:
    return wanted in node.text.casefold() or wanted == node.status


def _count_below(children: Children, node: NodeId) -> int:
    count, stack = 0, [node]
    while stack:
        below = children.get(stack.pop(), ())
        count += len(below)
        stack.extend(below)
    return count
