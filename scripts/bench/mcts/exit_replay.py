"""What a search with exits does on a recorded tree, without an engine.

The trees are those of `scripts.bench.mcts.record`: whole MCTS runs with one rollout at a time and
no exit. Until it ends, a search with exits is the same search, so it never leaves the tree.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from flashedge.search.base import (
    Cluster,
    Clustered,
    Command,
    Expand,
    Finish,
    Generated,
    Result,
    Score,
    Scored,
)
from flashedge.search.mcts.rollouts import MctsState
from flashedge.search.strategies.mcts import Mcts
from flashedge.types import FinishReason, Limits, NodeId, Problem, Segment

LIMITS = Limits(max_path_tokens=2048)


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedNode:
    segment: Segment
    """Its tokens and texts stand for those of the run: equal siblings have equal ones."""
    scores: tuple[float, ...]
    answer: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedTree:
    """A run's nodes by their numbers, which a search with exits gives them too."""

    nodes: Mapping[NodeId, RecordedNode]
    right: Mapping[str, bool]
    """Of each answer, whether it is right."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Replay:
    """What a search did with a recorded tree."""

    state: MctsState
    finish: Finish
    right: bool


def load_trees(path: Path) -> Sequence[RecordedTree]:
    """Read the MCTS runs of a recording."""
    rows = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    return [_parse_tree(row) for row in rows if row.get("way") == "mcts"]


def replay_search(search: Mcts, tree: RecordedTree) -> Replay:
    """Raises KeyError where the search goes beyond the tree."""
    state, commands = search.start(Problem.from_text("?"), 0, LIMITS)
    pending: list[Result] = []
    while True:
        pending += [result for command in commands for result in _find_results(command, tree)]
        if commands and isinstance(finish := commands[-1], Finish):
            right = finish.answer is not None and tree.right[finish.answer]
            return Replay(state=state, finish=finish, right=right)
        state, commands = search.tell(state, pending.pop(0))


def _parse_tree(row: Mapping[str, Any]) -> RecordedTree:
    nodes = {}
    for number, node in enumerate(row["nodes"]):
        if len(node) > 2:
            parent, _, size, logprob, num_steps, scores, ends, answer, same = node
            steps = (f"{parent}.{same}", *("." * (num_steps - 1)))
            segment = Segment(
                token_ids=(0,) * size,
                logprobs=(logprob,) * size,
                text="".join(steps),
                steps=steps,
                finish=FinishReason.STOP if ends else FinishReason.BOUNDARY,
            )
            nodes[NodeId(number)] = RecordedNode(
                segment=segment, scores=tuple(scores), answer=answer
            )
    return RecordedTree(nodes=nodes, right=row["right"])


def _find_results(command: Command, tree: RecordedTree) -> list[Result]:
    match command:
        case Expand(children=children):
            return [Generated(node=c.node, segment=tree.nodes[c.node].segment) for c in children]
        case Score(nodes=nodes):
            return [Scored(node=node, scores=tree.nodes[node].scores) for node in nodes]
        case Cluster(nodes=nodes):
            return [Clustered(answers={node: tree.nodes[node].answer for node in nodes})]
        case _:
            return []
