"""What searches that work in levels share: generate a level, score it, decide, and finally vote.

    GENERATE --all generated--> SCORE --all scored--> decide: proceed, or vote
    proceed --the policy is due--> CHECK --clustered, continue--> resume: the next level
    vote --> CLUSTER --clustered--> DONE;    CHECK --clustered, stop--> DONE
    conclude: GENERATE | SCORE | CHECK -> CLUSTER | DONE

A level is decided only when all of its results have arrived, so the order of arrival can't change
the decision. The policy is asked between two levels, about finished paths.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import assert_never

from flashedge.search.base import (
    Allowance,
    Child,
    Cluster,
    Clustered,
    Command,
    Expand,
    Generated,
    Lookahead,
    ProbeResult,
    Reached,
    Result,
    Score,
    Scored,
)
from flashedge.search.level_state import LevelState, Move, Shares
from flashedge.search.scoring import check_scores
from flashedge.search.seeds import child_seed
from flashedge.search.tree import ROOT, Node, NodeStatus, Tree
from flashedge.search.voting import VotingSearch
from flashedge.search.voting_state import NOTHING, Phase
from flashedge.types import Granularity, Limits, NodeId, Problem, Segment


@dataclass(frozen=True, slots=True, kw_only=True)
class LevelSearch(VotingSearch[LevelState]):
    """A search that works in levels. Subclasses decide what follows a level."""

    # ------------------------------------------------------------ ask and tell

    def start(self, problem: Problem, seed: int, limits: Limits) -> Move:
        """Create the root and expand it."""
        ask_at = self.find_first_ask()
        state = LevelState(tree=Tree.from_seed(seed), limits=limits, ask_at=ask_at)
        return self.expand(state, ((ROOT, self.initial_width(state)),))

    def tell(self, state: LevelState, result: Result) -> Move:
        """Raises ValueError, changing nothing, for scores that don't fit the node's steps."""
        match result:
            case Generated(node=node, segment=segment):
                return self._receive_segment(state, node, segment)
            case Scored(node=node, scores=scores):
                return self._receive_scores(state, node, scores)
            case Clustered():
                return self.receive_clusters(state, result)
            case ProbeResult() | Reached() | Allowance():
                return state, ()
            case _:
                assert_never(result)

    def conclude(self, state: LevelState) -> Move:
        """Vote among the paths that ended. If none did, answer with the best unfinished path."""
        if state.phase is Phase.DONE:
            return state, ()
        if state.phase is Phase.CLUSTER:
            return state, (Cluster(nodes=state.complete),)
        changes: dict[NodeId, NodeStatus] = {}
        for node in state.level:
            status = state.tree[node].status
            if status is NodeStatus.GENERATING:
                changes[node] = NodeStatus.CANCELLED
            elif status is NodeStatus.GENERATED:
                ended = self.ends_path(state, node)
                changes[node] = NodeStatus.COMPLETE if ended else NodeStatus.ACTIVE
        ended_now = tuple(n for n, s in changes.items() if s is NodeStatus.COMPLETE)
        tree, complete = state.tree.mark(changes), (*state.complete, *ended_now)
        return self.vote(replace(state, tree=tree, complete=complete, outstanding=0))

    def lookahead(self, state: LevelState, node: NodeId) -> Lookahead:
        """See the contract. While `node` generates, its own tokens are not yet subtracted from the
        granularity. The seeds are those of an even share: a kept node gets a prefix of them, or
        more when duplicates leave fewer paths than the search wants to keep."""
        at = state.tree[node]
        children = state.tree.children(node)
        if children:
            seeds = tuple(child.seed for child in children)
            return Lookahead(granularity=self.granularity(state, node), seeds=seeds, terminal=False)
        if not self._may_continue(state, at):
            return Lookahead(granularity=NOTHING, seeds=(), terminal=True)
        seeds = tuple(child_seed(at.seed, at.depth, i) for i in range(self.max_children(state)))
        return Lookahead(granularity=self.granularity(state, node), seeds=seeds, terminal=not seeds)

    def _receive_segment(self, state: LevelState, node: NodeId, segment: Segment) -> Move:
        at = state.tree.nodes.get(node)
        if at is None or at.status is not NodeStatus.GENERATING:
            return state, ()
        tree = state.tree.add_segment(node, segment)
        state = replace(state, tree=tree, outstanding=state.outstanding - 1)
        if self.ends_path(state, node):
            state = replace(state, num_ended=state.num_ended + 1)
        if state.outstanding:
            return state, ()
        if not self.verifies:
            return self.decide(state)
        scoring = replace(state, phase=Phase.SCORE, outstanding=len(state.level))
        return scoring, (Score(nodes=state.level),)

    def _receive_scores(self, state: LevelState, node: NodeId, scores: tuple[float, ...]) -> Move:
        at = state.tree.nodes.get(node)
        if state.phase is not Phase.SCORE or at is None or at.segment is None:
            return state, ()
        if at.scores is not None:
            return state, ()
        check_scores(at, scores, self.judges)
        tree = state.tree.set_scores(node, scores)
        state = replace(state, tree=tree, outstanding=state.outstanding - 1)
        return (state, ()) if state.outstanding else self.decide(state)

    # ------------------------------------------------------------ what subclasses define

    @abstractmethod
    def granularity(self, state: LevelState, node: NodeId) -> Granularity:
        """How far the children of `node` are generated."""

    @abstractmethod
    def ends_path(self, state: LevelState, node: NodeId) -> bool:
        """Whether nothing can follow a generated node."""

    @abstractmethod
    def decide(self, state: LevelState) -> Move:
        """Continue after a level that is generated and scored."""

    @abstractmethod
    def max_children(self, state: LevelState) -> int:
        """Children that a kept node of the current level can expect."""

    def initial_width(self, state: LevelState) -> int:
        """Children of the root in the first level."""
        return self.n

    def resume(self, state: LevelState) -> Move:
        """Start the planned level, after the policy was asked if it was due."""
        return self.expand(state, state.planned)

    def list_unfinished(self, state: LevelState) -> Sequence[NodeId]:
        return state.level

    # ------------------------------------------------------------ what subclasses call

    def expand(self, state: LevelState, shares: Shares) -> Move:
        """Start a level with the given children."""
        tree = state.tree
        commands: list[Command] = []
        level: list[NodeId] = []
        for parent, count in shares:
            tree, nodes = tree.expand(parent, count)
            children = tuple(Child(node=n.id, seed=n.seed) for n in nodes)
            bound = self.granularity(state, parent)
            commands.append(Expand(parent=parent, children=children, granularity=bound))
            level.extend(n.id for n in nodes)
        state = replace(
            state,
            tree=tree,
            phase=Phase.GENERATE,
            level=tuple(level),
            outstanding=len(level),
            num_ended=0,
            planned=(),
        )
        return state, tuple(commands)

    def proceed(self, state: LevelState, shares: Shares = ()) -> Move:
        """Plan a level and start it. If the policy is due, ask it first."""
        state = replace(state, planned=shares)
        if self.is_policy_due(state):
            return self.check(state)
        return self.resume(self.remember_checkpoint(state))

    def _may_continue(self, state: LevelState, node: Node) -> bool:
        if state.phase not in (Phase.GENERATE, Phase.SCORE) or state.is_over_budget:
            return False
        if node.status is NodeStatus.GENERATING:
            return self.granularity(state, node.id) != NOTHING
        return node.status is NodeStatus.GENERATED and not self.ends_path(state, node.id)
