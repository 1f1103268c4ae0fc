"""How the answer is chosen among finished paths."""

from __future__ import annotations

from collections.abc import Sequence

from flashedge.answers.extraction import votes
from flashedge.search.base import Finish
from flashedge.search.scoring import aggregate
from flashedge.search.tree import Tree
from flashedge.types import NodeId


def choose(tree: Tree, nodes: Sequence[NodeId], *, how: str, by: str) -> Finish:
    """The answer of `nodes`, whose answers are in the tree (representatives of their clusters).

    nodes: at least one, in the order that settles ties (node ids); `how` aggregates step scores.
    `by` weighted: the cluster with the largest sum of path scores; majority: the one with most
    paths, ties by that sum; best: the cluster of the best path that has an answer. The path shown
    is the best-scored one of the winning cluster; without any answer, the best-scored of all.
    """
    scores = {node: aggregate(tree.path_scores(node), how) for node in nodes}
    ranked = sorted(nodes, key=lambda node: -scores[node])
    counted = votes(
        ((tree[node].answer, scores[node]) for node in nodes),
        by="majority" if by == "majority" else "weighted",
    )
    if not counted:
        return Finish(choice=ranked[0], answer=None, votes=())
    if by == "best":
        choice = next(node for node in ranked if tree[node].answer is not None)
    else:
        choice = next(node for node in ranked if tree[node].answer == counted[0].answer)
    return Finish(choice=choice, answer=tree[choice].answer, votes=counted)
