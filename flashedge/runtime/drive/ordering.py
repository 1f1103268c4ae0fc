"""Orders the work of a level before it is submitted to the engines. It changes no result."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

from flashedge.scheduling.prefix_order import Order, Paths
from flashedge.search.base import Command, Expand, Score
from flashedge.search.tree import Tree
from flashedge.types import NodeId

Ordering = Callable[[Paths], Order]


def order_commands(commands: Sequence[Command], tree: Tree, order: Ordering) -> Iterator[Command]:
    """Yield the same commands, expansions ordered by the paths of their parents and nodes to score
    by their own. Children of one parent keep their order."""
    expansions = [c for c in commands if isinstance(c, Expand)]
    positions = iter(_order_nodes([c.parent for c in expansions], tree, order))
    for command in commands:
        match command:
            case Expand():
                yield expansions[next(positions)]
            case Score(nodes=nodes):
                ordered = tuple(nodes[i] for i in _order_nodes(nodes, tree, order))
                yield replace(command, nodes=ordered)
            case _:
                yield command


def _order_nodes(nodes: Sequence[NodeId], tree: Tree, order: Ordering) -> Order:
    return order([[at.id for at in tree.path(node)] for node in nodes])
