"""Negative exit, selective: branches whose first step is weak do not hold the search up.

They are left out of the test whether every leaf is futile. The search itself may still enter them.

Off unless `Exits.selective_exit`. Ref: arXiv 2604.00510 §4.3 (selective futility check).
"""

from __future__ import annotations

from flashedge.search.mcts.statistics import Statistics
from flashedge.search.tree import Tree
from flashedge.types import NodeId


def is_in_weak_branch(tree: Tree, statistics: Statistics, node: NodeId, threshold: float) -> bool:
    """Whether the first step of the path to `node` has a reward under the threshold."""
    path = tree.path(node)
    return bool(path) and statistics[path[0].id].reward < threshold
