"""What the level-wise searches share: generate a whole level, score it, decide, and at last vote.

    GENERATE --all generated--> SCORE --all scored--> decide: the next level, or CLUSTER
    CLUSTER --clustered--> DONE;    conclude: GENERATE | SCORE -> CLUSTER | DONE

A decision is made only when a level is whole, so it can't depend on the order of arrival.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import assert_never

from flashedge.search.base import (
    Child,
    Cluster,
    Clustered,
    Command,
    Expand,
    Finish,
    Generated,
    Lookahead,
    Result,
    Score,
    Scored,
)
from flashedge.search.scoring import aggregate
from flashedge.search.seeds import child_seed
from flashedge.search.selection import choose
from flashedge.search.tree import ROOT, Node, NodeStatus, Tree
from flashedge.types import Granularity, Limits, NodeId, Problem, Segment

NOTHING = Granularity(max_tokens=0)


class Phase(StrEnum):
    GENERATE = "generate"
    SCORE = "score"
    CLUSTER = "cluster"
    DONE = "done"


@dataclass(frozen=True, slots=True, kw_only=True)
class LevelState:
    """level: the nodes under way, ascending ids; missing: results of this phase still out;
    ended: nodes of the level whose path is known to end; complete: nodes that ended a path, then
    what is put to the vote, ascending ids."""

    tree: Tree
    limits: Limits
    phase: Phase = Phase.GENERATE
    level: tuple[NodeId, ...] = ()
    missing: int = 0
    ended: int = 0
    complete: tuple[NodeId, ...] = ()

    def room(self, node: NodeId) -> int:
        """Tokens that the path of `node` may still hold."""
        at = self.tree[node]
        if at.segment is None and at.parent is not None:
            at = self.tree[at.parent]
        return max(0, self.limits.max_path_tokens - at.path_tokens)


Move = tuple[LevelState, tuple[Command, ...]]


@dataclass(frozen=True, slots=True, kw_only=True)
class LevelSearch(ABC):
    """A search that works in levels. Subclasses decide what follows a level.

    n: paths to complete; aggregate: last, min, prod or mean of a path's step scores; selection:
    weighted, majority or best (see `selection.choose`).
    """

    n: int
    aggregate: str = "last"
    selection: str = "weighted"

    @property
    @abstractmethod
    def name(self) -> str: ...

    @abstractmethod
    def granularity(self, state: LevelState, node: NodeId) -> Granularity:
        """Of the children of `node`."""

    @abstractmethod
    def ends(self, state: LevelState, node: NodeId) -> bool:
        """Whether the path of a generated node is whole: nothing can follow."""

    @abstractmethod
    def decide(self, state: LevelState) -> Move:
        """What follows a level that is generated and scored."""

    @abstractmethod
    def share(self, state: LevelState) -> int:
        """Children that a kept node of the level under way may expect."""

    # ------------------------------------------------------------ ask and tell

    def start(self, problem: Problem, seed: int, limits: Limits) -> Move:
        """The root and its `n` children to generate."""
        state = LevelState(tree=Tree.rooted(seed), limits=limits)
        return self._expand(state, ((ROOT, self.n),))

    def tell(self, state: LevelState, result: Result) -> Move:
        """Raises ValueError, changing nothing, for scores that don't fit the node's steps."""
        match result:
            case Generated(node=node, segment=segment):
                return self._generated(state, node, segment)
            case Scored(node=node, scores=scores):
                return self._scored(state, node, scores)
            case Clustered():
                return self._clustered(state, result)
            case _:
                assert_never(result)

    def conclude(self, state: LevelState) -> Move:
        """Vote among the paths that ended; without one, show the best path there is."""
        if state.phase is Phase.DONE:
            return state, ()
        if state.phase is Phase.CLUSTER:
            return state, (Cluster(nodes=state.complete),)
        moves: dict[NodeId, NodeStatus] = {}
        for node in state.level:
            status = state.tree[node].status
            if status is NodeStatus.GENERATING:
                moves[node] = NodeStatus.CANCELLED
            elif status is NodeStatus.GENERATED:
                ended = self.ends(state, node)
                moves[node] = NodeStatus.COMPLETE if ended else NodeStatus.ACTIVE
        ended_now = tuple(n for n, s in moves.items() if s is NodeStatus.COMPLETE)
        state = replace(
            state,
            tree=state.tree.mark(moves),
            complete=(*state.complete, *ended_now),
            missing=0,
        )
        return self.vote(state)

    def lookahead(self, state: LevelState, node: NodeId) -> Lookahead:
        """See the contract. While `node` generates, its own tokens are not yet taken off the
        granularity. The seeds are those of an even share; a kept node gets a prefix of them, or
        more when duplicates leave fewer paths than the search wants to keep."""
        at = state.tree[node]
        family = state.tree.children(node)
        if family:
            seeds = tuple(child.seed for child in family)
            return Lookahead(granularity=self.granularity(state, node), seeds=seeds, terminal=False)
        if not self._may_continue(state, at):
            return Lookahead(granularity=NOTHING, seeds=(), terminal=True)
        seeds = tuple(child_seed(at.seed, at.depth, i) for i in range(self.share(state)))
        return Lookahead(granularity=self.granularity(state, node), seeds=seeds, terminal=not seeds)

    # ------------------------------------------------------------ for subclasses

    def expand(self, state: LevelState, shares: Sequence[tuple[NodeId, int]]) -> Move:
        """Begin a level: `(parent, number of children)` in the order of expansion."""
        return self._expand(state, shares)

    def vote(self, state: LevelState) -> Move:
        """End the search: group the answers of `complete`, or of the best path if none ended."""
        nodes = state.complete or self._best_unfinished(state)
        if not nodes:
            done = replace(state, phase=Phase.DONE)
            return done, (Finish(choice=ROOT, answer=None, votes=()),)
        asked = replace(state, phase=Phase.CLUSTER, complete=nodes)
        return asked, (Cluster(nodes=nodes),)

    def score_of(self, state: LevelState, node: NodeId) -> float:
        return aggregate(state.tree.path_scores(node), self.aggregate)

    # ------------------------------------------------------------ inner

    def _expand(self, state: LevelState, shares: Sequence[tuple[NodeId, int]]) -> Move:
        tree = state.tree
        commands: list[Command] = []
        level: list[NodeId] = []
        for parent, count in shares:
            tree, made = tree.expand(parent, count)
            children = tuple(Child(node=n.id, seed=n.seed) for n in made)
            bound = self.granularity(state, parent)
            commands.append(Expand(parent=parent, children=children, granularity=bound))
            level.extend(n.id for n in made)
        state = replace(
            state,
            tree=tree,
            phase=Phase.GENERATE,
            level=tuple(level),
            missing=len(level),
            ended=0,
        )
        return state, tuple(commands)

    def _generated(self, state: LevelState, node: NodeId, segment: Segment) -> Move:
        at = state.tree.nodes.get(node)
        if at is None or at.status is not NodeStatus.GENERATING:
            return state, ()
        state = replace(state, tree=state.tree.generated(node, segment), missing=state.missing - 1)
        if self.ends(state, node):
            state = replace(state, ended=state.ended + 1)
        if state.missing:
            return state, ()
        scoring = replace(state, phase=Phase.SCORE, missing=len(state.level))
        return scoring, (Score(nodes=state.level),)

    def _scored(self, state: LevelState, node: NodeId, scores: tuple[float, ...]) -> Move:
        at = state.tree.nodes.get(node)
        if (
            state.phase is not Phase.SCORE
            or at is None
            or at.segment is None
            or at.scores is not None
        ):
            return state, ()
        if len(scores) != len(at.segment.steps) or not all(map(math.isfinite, scores)):
            raise ValueError(f"node {node}: {len(at.segment.steps)} steps, scores {scores}")
        state = replace(state, tree=state.tree.scored(node, scores), missing=state.missing - 1)
        return (state, ()) if state.missing else self.decide(state)

    def _clustered(self, state: LevelState, result: Clustered) -> Move:
        if state.phase is not Phase.CLUSTER or result.answers.keys() != set(state.complete):
            return state, ()
        tree = state.tree.answered(result.answers)
        finish = choose(tree, state.complete, how=self.aggregate, by=self.selection)
        return replace(state, tree=tree, phase=Phase.DONE), (finish,)

    def _best_unfinished(self, state: LevelState) -> tuple[NodeId, ...]:
        """The best-scored path under way: a node of the level, or a parent none of whose children
        has a segment; ties to the longer path, then to the lower id. None: an empty tuple."""
        tree = state.tree
        made = [n for n in state.level if tree[n].segment is not None]
        spared = {NodeStatus.PRUNED, NodeStatus.DUPLICATE}
        live = {n for n in made if tree[n].status not in spared}
        parents = {p for n in state.level if (p := tree[n].parent) is not None and p != ROOT}
        live |= parents - {p for n in made if (p := tree[n].parent) is not None}
        key = {n: (-self.score_of(state, n), -tree[n].depth, n) for n in live}
        return (min(live, key=key.__getitem__),) if live else ()

    def _may_continue(self, state: LevelState, node: Node) -> bool:
        if state.phase not in (Phase.GENERATE, Phase.SCORE):
            return False
        budget = state.limits.token_budget
        if budget is not None and state.tree.committed_tokens >= budget:
            return False
        if node.status is NodeStatus.GENERATING:
            return self.granularity(state, node.id) != NOTHING
        return node.status is NodeStatus.GENERATED and not self.ends(state, node.id)
