"""Finds the paths of a search that say the same."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from flashedge.search.tree import Tree
from flashedge.types import NodeId


def find_unique(
    tree: Tree, nodes: Iterable[NodeId], family: Callable[[NodeId], int] = lambda node: 0
) -> list[NodeId]:
    """Return the first node of each text. Equal paths count as duplicates within a family.

    nodes: ascending ids.
    """
    first: dict[tuple[int, str], NodeId] = {}
    for node in nodes:
        first.setdefault((family(node), tree.path_text(node).strip()), node)
    return list(first.values())
