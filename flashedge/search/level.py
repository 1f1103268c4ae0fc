"""What the level-wise searches share: generate a whole level, score it, decide, and at last vote.

    GENERATE --all generated--> SCORE --all scored--> decide: proceed, or vote
    proceed --the policy is due--> CHECK --clustered, go on--> resume: the next level
    vote --> CLUSTER --clustered--> DONE;    CHECK --clustered, stop--> DONE
    conclude: GENERATE | SCORE | CHECK -> CLUSTER | DONE

A decision is made only when a level is whole, so it can't depend on the order of arrival; the
policy, too, is asked between two levels, about finished paths.
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
from flashedge.search.level_checkpoints import noted, read, reread
from flashedge.search.level_state import NOTHING, LevelState, Move, Phase, Shares
from flashedge.search.scoring import aggregate, score_per_step
from flashedge.search.seeds import child_seed
from flashedge.search.tree import ROOT, Node, NodeStatus, Tree
from flashedge.types import Granularity, Limits, NodeId, Problem, Segment


@dataclass(frozen=True, slots=True, kw_only=True)
class LevelSearch(ABC):
    """A search that works in levels. Subclasses decide what follows a level.

    n: paths to complete; aggregate: last, min, prod or mean of a path's step scores; selection:
    weighted, majority or best (see `answer_choice.choose_answer`); policy: when to stop early, None: never;
    verifies: whether nodes are scored.
    """

    verifies: ClassVar[bool] = True

    n: int
    aggregate: str = "last"
    selection: str = "weighted"
    policy: Policy | None = None

    @property
    @abstractmethod
    def name(self) -> str: ...

    @property
    def scores_levels(self) -> bool:
        return self.verifies

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

    def first(self, state: LevelState) -> int:
        """Children of the root in the first level."""
        return self.n

    def resume(self, state: LevelState) -> Move:
        """Begin what was planned, after the policy was asked if it was due."""
        return self._expand(state, state.planned)

    def progress(self, state: LevelState) -> int:
        """How much of `n` is used up."""
        return sum(state.tree[n].status is NodeStatus.COMPLETE for n in state.complete)

    def counted(self, state: LevelState) -> Sequence[NodeId]:
        """The paths that certainty is taken of; their answers are known."""
        return state.complete

    def reward(self, rewards: Iterable[float]) -> float | None:
        """Certainty by the scores of `counted` paths."""
        return max_reward(rewards)

    def measures(self, state: LevelState) -> dict[str, float]:
        """Certainty of a state whose finished paths are clustered, by measure."""
        tree, paths = state.tree, self.counted(state)
        taken = {ENTROPY: measure_certainty(tree[n].answer for n in paths)}
        if self.verifies:
            scores = (state.tree.path_scores(n) for n in paths)
            taken[REWARD] = self.reward(score_per_step(s, self.aggregate) for s in scores)
        return {name: value for name, value in taken.items() if value is not None}

    # ------------------------------------------------------------ ask and tell

    def start(self, problem: Problem, seed: int, limits: Limits) -> Move:
        """The root and its first children to generate."""
        ask_at = self.n if self.policy is None else self.policy.allot((), self.n).more
        state = LevelState(tree=Tree.rooted(seed), limits=limits, ask_at=max(1, ask_at))
        return self._expand(state, ((ROOT, self.first(state)),))

    def tell(self, state: LevelState, result: Result) -> Move:
        """Raises ValueError, changing nothing, for scores that don't fit the node's steps."""
        match result:
            case Generated(node=node, segment=segment):
                return self._generated(state, node, segment)
            case Scored(node=node, scores=scores):
                return self._scored(state, node, scores)
            case Clustered():
                return self._clustered(state, result)
            case ProbeResult():
                return state, ()
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

    def proceed(self, state: LevelState, shares: Shares = ()) -> Move:
        """Plan a level and begin it; where the policy is due, ask it first."""
        state = replace(state, planned=shares)
        if self.asks(state):
            return self._grouped(replace(state, phase=Phase.CHECK))
        return self.resume(self.note(state))

    def asks(self, state: LevelState) -> bool:
        """Whether this checkpoint is one at which the policy is asked."""
        due = self.policy is not None and self.progress(state) >= state.ask_at
        return due and bool(state.complete)

    def note(self, state: LevelState) -> LevelState:
        """Without a policy: remember this checkpoint."""
        return noted(self, state)

    def vote(self, state: LevelState, cut_by: str | None = None) -> Move:
        """End the search: group the answers of `complete`, or of the best path if none ended."""
        state = replace(state, cut_by=cut_by)
        nodes = state.complete or self._best_unfinished(state)
        if not nodes:
            done = replace(state, phase=Phase.DONE)
            return done, (Finish(choice=ROOT, answer=None, votes=(), cut_by=cut_by),)
        return self._grouped(replace(state, phase=Phase.CLUSTER, complete=nodes))

    def consult(self, state: LevelState) -> tuple[LevelState, bool]:
        """Take a checkpoint of clustered answers and ask the policy; whether the search goes on."""
        assert self.policy is not None, "without a policy nothing is checked"
        state = read(self, state)
        given = self.policy.allot(state.history, self.n)
        if given.more <= 0:
            return replace(state, cut_by=str(given.reason)), False
        return replace(state, ask_at=state.history[-1].progress + given.more), True

    def finish(self, state: LevelState) -> Move:
        finish = choose_answer(state.tree, state.complete, how=self.aggregate, by=self.selection)
        return replace(state, phase=Phase.DONE), (replace(finish, cut_by=state.cut_by),)

    def score_of(self, state: LevelState, node: NodeId) -> float:
        return aggregate(state.tree.path_scores(node), self.aggregate)

    def _expand(self, state: LevelState, shares: Shares) -> Move:
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
            planned=(),
        )
        return state, tuple(commands)

    # ------------------------------------------------------------ inner

    def _generated(self, state: LevelState, node: NodeId, segment: Segment) -> Move:
        at = state.tree.nodes.get(node)
        if at is None or at.status is not NodeStatus.GENERATING:
            return state, ()
        state = replace(state, tree=state.tree.generated(node, segment), missing=state.missing - 1)
        if self.ends(state, node):
            state = replace(state, ended=state.ended + 1)
        if state.missing:
            return state, ()
        if not self.verifies:
            return self.decide(state)
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
        asked = state.phase in (Phase.CHECK, Phase.CLUSTER)
        if not asked or result.answers.keys() != set(state.complete):
            return state, ()
        tree = state.tree.answered(result.answers)
        return self._grouped(replace(state, tree=tree, clustered=state.complete))

    def _grouped(self, state: LevelState) -> Move:
        """Group the answers of `complete` unless that is done; then go on with the phase."""
        if state.clustered != state.complete:
            return state, (Cluster(nodes=state.complete),)
        if state.phase is Phase.CLUSTER:
            return self.finish(read(self, reread(self, state)))
        state, goes_on = self.consult(state)
        return self.resume(state) if goes_on else self.finish(state)

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
        if state.over_budget:
            return False
        if node.status is NodeStatus.GENERATING:
            return self.granularity(state, node.id) != NOTHING
        return node.status is NodeStatus.GENERATED and not self.ends(state, node.id)
