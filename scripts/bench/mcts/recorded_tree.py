"""The recorded trees of a problem as one tree, from which simulated searches take their steps.

A simulated search with the problem's own seed asks for the same nodes as a real one would, as long
as they were recorded by any of the ways (`record.py`). Where it goes beyond them, the children of a
node are those of the recorded node at the same depth whose path has the nearest score. `missed`
counts how often that happened.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from math import log, prod
from pathlib import Path
from statistics import fmean
from typing import Any

from flashedge.search.tree import mix64

LEAST_SCORE = 1e-6


@dataclass(slots=True)
class RecordedNode:
    """One step of a recorded path."""

    depth: int
    tokens: int = 0
    logprob: float = 0.0
    """Mean of its tokens'."""
    scores: tuple[float, ...] = ()
    ends: bool = False
    answer: str | None = None
    same: int = 0
    """Index of the first sibling with the same tokens."""
    path_score: float = 1.0
    """Product of the scores from the root."""
    children: dict[int, RecordedNode] = field(default_factory=dict)
    """By index. Those without a segment are missing."""


class RecordedProblem:
    """What is known of one problem."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.root = RecordedNode(depth=0)
        self.prompt_tokens = 0
        self.right: dict[str, bool] = {}
        self.asked = self.missed = 0
        self._parents: dict[int, list[RecordedNode]] = {}
        """Nodes with scored children, by depth."""

    def add(self, record: dict[str, Any]) -> None:
        """Add a tree that was searched with this problem's seed."""
        self.right.update(record["right"])
        self.prompt_tokens = record["prompt_tokens"]
        made: list[RecordedNode | None] = [self.root]
        for row in record["nodes"][1:]:
            parent = made[row[0]]
            if parent is None or len(row) < 3:
                made.append(None)
                continue
            _, index, tokens, logprob, _, scores, ends, answer, same = row
            node = parent.children.get(index)
            if node is None:
                node = parent.children[index] = RecordedNode(
                    depth=parent.depth + 1,
                    tokens=tokens,
                    logprob=logprob,
                    ends=ends,
                    answer=answer,
                    same=same,
                )
            if scores and not node.scores:
                node.scores = tuple(scores)
            made.append(node)

    def close(self) -> None:
        """All trees are added: drop what no path goes through, and index the rest."""
        self._parents.clear()
        self._index(self.root)

    def _index(self, node: RecordedNode) -> None:
        for index in [i for i, c in node.children.items() if c.same != i or not c.scores]:
            child = node.children[index]
            kept = node.children.get(child.same)
            if child.same == index or kept is None or not kept.scores:
                del node.children[index]  # it was never scored
        if node.children:
            self._parents.setdefault(node.depth, []).append(node)
        for index, child in node.children.items():
            if child.same != index:
                continue
            child.path_score = node.path_score * prod(child.scores)
            self._index(child)

    def find_children(self, node: RecordedNode, seed: int) -> RecordedNode:
        """The recorded node whose children stand for those of `node`: itself if it has any."""
        self.asked += 1
        if node.children:
            return node
        self.missed += 1
        depth = node.depth
        while depth not in self._parents:
            depth -= 1
        wanted = log(max(node.path_score, LEAST_SCORE))
        ranked = sorted(
            self._parents[depth],
            key=lambda one: abs(log(max(one.path_score, LEAST_SCORE)) - wanted),
        )
        nearest = ranked[:3]
        return nearest[mix64(seed, depth) % len(nearest)]

    def find_mean_path(self) -> float:
        """Mean tokens of a finished path, 1 where none has finished."""
        lengths = []
        open_paths = [(self.root, 0)]
        while open_paths:
            node, tokens = open_paths.pop()
            if node.ends:
                lengths.append(tokens + node.tokens)
            open_paths += [(child, tokens + node.tokens) for child in node.children.values()]
        return fmean(lengths or [1])

    def list_rollouts(self, record: dict[str, Any]) -> Sequence[tuple[float, float, bool]]:
        """Of each finished path of a record: the score of its first step, the product of all
        scores, and whether its answer is right."""
        found = []
        nodes = record["nodes"]
        products: list[float] = [1.0]
        firsts: list[float] = [1.0]
        for row in nodes[1:]:
            scores = row[5] if len(row) > 2 else []
            own = prod(scores) if scores else 0.0
            parent = row[0]
            products.append(products[parent] * own)
            firsts.append(own if parent == 0 else firsts[parent])
            if len(row) > 2 and row[6] and scores:
                is_right = bool(row[7]) and record["right"].get(row[7], False)
                found.append((firsts[-1], products[-1], is_right))
        return found


def load_records(path: Path) -> list[dict[str, Any]]:
    """The lines of a recording."""
    lines = map(json.loads, path.read_text(encoding="utf-8").splitlines())
    return [line for line in lines if "nodes" in line]


def load_problems(path: Path) -> list[RecordedProblem]:
    """The recorded problems, by number. Those without an MCTS tree are left out."""
    found: dict[int, RecordedProblem] = {}
    searched = set()
    for record in load_records(path):
        problem = found.setdefault(record["problem"], RecordedProblem(record["problem"]))
        problem.add(record)
        if record["way"].startswith("mcts"):
            searched.add(record["problem"])
    problems = [found[number] for number in sorted(searched)]
    for problem in problems:
        problem.close()
    return problems
