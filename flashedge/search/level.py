"""What searches that work in levels share: generate a level, score it, decide, and finally vote.

    GENERATE --all generated--> SCORE --all scored--> decide: proceed, or vote
    proceed --the policy is due--> CHECK --clustered, continue--> resume: the next level
    vote --> CLUSTER --clustered--> DONE;    CHECK --clustered, stop--> DONE
    conclude: GENERATE | SCORE | CHECK -> CLUSTER | DONE

A level is decided only when all of its results have arrived, so the order of arrival can't change
the decision. The policy is asked between two levels, about finished paths.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, assert_never

from flashedge.certainty.certainindex import measure_certainty
from flashedge.certainty.history import ENTROPY, REWARD
from flashedge.certainty.policies import Policy
from flashedge.certainty.rewards import max_reward
from flashedge.search.answer_choice import choose_answer
from flashedge.search.base import (
    Allowance,
    Child,
    Cluster,
    Clustered,
    Command,
    Expand,
    Finish,
    Generated,
    Lookahead,
    ProbeResult,
    Result,
    Score,
    Scored,
)
from flashedge.search.level_checkpoints import (
    remember_checkpoint,
    take_checkpoint,
    take_pending_checkpoints,
)
from flashedge.search.level_state import NOTHING, LevelState, Move, Phase, Shares
from flashedge.search.scoring import aggregate, score_per_step
from flashedge.search.seeds import child_seed
from flashedge.search.tree import ROOT, Node, NodeStatus, Tree
from flashedge.types import Granularity, Judges, Limits, NodeId, Problem, Segment


@dataclass(frozen=True, slots=True, kw_only=True)
class LevelSearch(ABC):
    """A search that works in levels. Subclasses decide what follows a level."""

    verifies: ClassVar[bool] = True
    """Whether nodes are scored."""

    n: int
    """Paths to complete (MCTS: rollouts)."""
    aggregate: str = "last"
    """How step scores become the score of a path: last, min, prod or mean."""
    selection: str = "weighted"
    """How the answer is chosen: weighted, majority or best. See `choose_answer`."""
    policy: Policy | None = None
    """When to stop early. None never does."""
    judges: Judges = "steps"
    """What one score of the verifier is about. Searches that choose between unfinished paths need
    scores of steps."""

    @property
    @abstractmethod
    def name(self) -> str: ...

    @property
    def scores_levels(self) -> bool:
        return self.verifies

    # ------------------------------------------------------------ ask and tell

    def start(self, problem: Problem, seed: int, limits: Limits) -> Move:
        """Create the root and expand it."""
        ask_at = self.n if self.policy is None else self.policy.allot((), self.n).more
        state = LevelState(tree=Tree.from_seed(seed), limits=limits, ask_at=max(1, ask_at))
        return self.expand(state, ((ROOT, self.initial_width(state)),))

    def tell(self, state: LevelState, result: Result) -> Move:
        """Raises ValueError, changing nothing, for scores that don't fit the node's steps."""
        match result:
            case Generated(node=node, segment=segment):
                return self._receive_segment(state, node, segment)
            case Scored(node=node, scores=scores):
                return self._receive_scores(state, node, scores)
            case Clustered():
                return self._receive_clusters(state, result)
            case ProbeResult() | Allowance():
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
        expected = 1 if self.judges == "answers" else len(at.segment.steps)
        if len(scores) != expected or not all(map(math.isfinite, scores)):
            what = "answer" if self.judges == "answers" else "steps"
            raise ValueError(f"node {node}: {expected} {what}, scores {scores}")
        tree = state.tree.set_scores(node, scores)
        state = replace(state, tree=tree, outstanding=state.outstanding - 1)
        return (state, ()) if state.outstanding else self.decide(state)

    def _receive_clusters(self, state: LevelState, result: Clustered) -> Move:
        expected = state.phase in (Phase.CHECK, Phase.CLUSTER)
        if not expected or result.answers.keys() != set(state.complete):
            return state, ()
        tree = state.tree.set_answers(result.answers)
        return self._use_clusters(replace(state, tree=tree, clustered=state.complete))

    def _use_clusters(self, state: LevelState) -> Move:
        """Check or finish, once the answers of `complete` are grouped."""
        if state.clustered != state.complete:
            return state, (Cluster(nodes=state.complete),)
        if state.phase is Phase.CLUSTER:
            return self.finish(take_checkpoint(self, take_pending_checkpoints(self, state)))
        state, continues = self.consult(state)
        return self.resume(state) if continues else self.finish(state)

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

    def progress(self, state: LevelState) -> int:
        """How much of `n` is used up."""
        return sum(state.tree[n].status is NodeStatus.COMPLETE for n in state.complete)

    def measured_paths(self, state: LevelState) -> Sequence[NodeId]:
        """The paths over which certainty is measured. Their answers are known."""
        return state.complete

    def reward(self, rewards: Iterable[float]) -> float | None:
        """Certainty by the scores of the measured paths."""
        return max_reward(rewards)

    def measures(self, state: LevelState) -> dict[str, float]:
        """Certainty of a state whose finished paths are clustered, by measure."""
        tree, paths = state.tree, self.measured_paths(state)
        values = {ENTROPY: measure_certainty(tree[n].answer for n in paths)}
        if self.verifies:
            scores = (tree.path_scores(n) for n in paths)
            values[REWARD] = self.reward(score_per_step(s, self.aggregate) for s in scores)
        return {name: value for name, value in values.items() if value is not None}

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
            return self._use_clusters(replace(state, phase=Phase.CHECK))
        return self.resume(self.remember_checkpoint(state))

    def is_policy_due(self, state: LevelState) -> bool:
        due = self.policy is not None and self.progress(state) >= state.ask_at
        return due and bool(state.complete)

    def remember_checkpoint(self, state: LevelState) -> LevelState:
        """Without a policy: remember this point for the end of the run."""
        return remember_checkpoint(self, state)

    def consult(self, state: LevelState) -> tuple[LevelState, bool]:
        """Take a checkpoint and ask the policy. The second value: whether the search continues."""
        assert self.policy is not None, "without a policy nothing is checked"
        state = take_checkpoint(self, state)
        allotment = self.policy.allot(state.history, self.n)
        if allotment.more <= 0:
            return replace(state, cut_by=str(allotment.reason)), False
        return replace(state, ask_at=state.history[-1].progress + allotment.more), True

    def vote(self, state: LevelState, cut_by: str | None = None) -> Move:
        """End the search: group the answers of `complete`, or of the best path if none ended."""
        state = replace(state, cut_by=cut_by)
        nodes = state.complete or state.best_unfinished(lambda n: self.path_score(state, n))
        if not nodes:
            done = replace(state, phase=Phase.DONE)
            return done, (Finish(choice=ROOT, answer=None, votes=(), cut_by=cut_by),)
        return self._use_clusters(replace(state, phase=Phase.CLUSTER, complete=nodes))

    def finish(self, state: LevelState) -> Move:
        """Choose the answer. The answers of `complete` are grouped."""
        finish = choose_answer(state.tree, state.complete, how=self.aggregate, by=self.selection)
        return replace(state, phase=Phase.DONE), (replace(finish, cut_by=state.cut_by),)

    def path_score(self, state: LevelState, node: NodeId) -> float:
        return aggregate(state.tree.path_scores(node), self.aggregate)

    def _may_continue(self, state: LevelState, node: Node) -> bool:
        if state.phase not in (Phase.GENERATE, Phase.SCORE) or state.is_over_budget:
            return False
        if node.status is NodeStatus.GENERATING:
            return self.granularity(state, node.id) != NOTHING
        return node.status is NodeStatus.GENERATED and not self.ends_path(state, node.id)
