"""In which order the work of a level is handed to the engines. It changes no result."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

from flashedge.scheduling.prefix_order import Order, Paths
from flashedge.search.base import Command, Expand, Score
from flashedge.search.tree import Tree
from flashedge.types import NodeId

Ordering = Callable[[Paths], Order]


def in_order(commands: Sequence[Command], tree: Tree, order: Ordering) -> Iterator[Command]:
    """The same commands: expansions by the paths of their parents, scoring by those of its nodes.
    Children of a parent stay as they are."""
    expansions = [c for c in commands if isinstance(c, Expand)]
    places = iter(_places([c.parent for c in expansions], tree, order))
    for command in commands:
        match command:
            case Expand():
                yield expansions[next(places)]
            case Score(nodes=nodes):
                ordered = tuple(nodes[i] for i in _places(nodes, tree, order))
                yield replace(command, nodes=ordered)
            case _:
                yield command


def _places(nodes: Sequence[NodeId], tree: Tree, order: Ordering) -> Order:
    return order([[at.id for at in tree.path(node)] for node in nodes])
