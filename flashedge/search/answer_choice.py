"""Chooses the answer of a search among its finished paths."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from flashedge.search.base import Finish
from flashedge.search.scoring import aggregate
from flashedge.search.tree import Tree
from flashedge.types import NodeId, Vote


def choose_answer(tree: Tree, nodes: Sequence[NodeId], *, how: str, by: str) -> Finish:
    """Choose one answer among `nodes`, whose answers in the tree represent their clusters.

    nodes: at least one, in the order that breaks ties (node ids); how: the aggregate of step
    scores. by: `weighted` takes the cluster with the largest sum of path scores; `majority` the
    one with most paths, ties by that sum; `best` the cluster of the best path that has an answer.
    The path shown is the best-scored one of that cluster; without any answer, of all.
    """
    scores = {node: aggregate(tree.path_scores(node), how) for node in nodes}
    ranked = sorted(nodes, key=lambda node: -scores[node])
    votes = count_votes(
        ((tree[node].answer, scores[node]) for node in nodes),
        by="majority" if by == "majority" else "weighted",
    )
    if not votes:
        return Finish(choice=ranked[0], answer=None, votes=())
    if by == "best":
        choice = next(node for node in ranked if tree[node].answer is not None)
    else:
        choice = next(node for node in ranked if tree[node].answer == votes[0].answer)
    return Finish(choice=choice, answer=tree[choice].answer, votes=votes)


def count_votes(
    ballots: Iterable[tuple[str | None, float]], by: str = "weighted"
) -> tuple[Vote, ...]:
    """Count answers, the winner first. Paths without an answer have no vote.

    ballots: (num_paths, 2), the representative answer of each path's cluster and the path's
    score, in a fixed order (node ids). by: `weighted` (sum of scores, ties by count) or
    `majority` (count, ties by sum of scores). What is still tied goes to the earlier ballot.
    Ref: weighted majority vote, arXiv 2408.03314 §5.1.
    """
    scores: dict[str, list[float]] = {}
    for answer, score in ballots:
        if answer is not None:
            scores.setdefault(answer, []).append(score)
    votes = [Vote(answer=a, weight=math.fsum(s), count=len(s)) for a, s in scores.items()]
    if by == "majority":
        return tuple(sorted(votes, key=lambda v: (-v.count, -v.weight)))
    return tuple(sorted(votes, key=lambda v: (-v.weight, -v.count)))
