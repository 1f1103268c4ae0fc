"""Votes, and what all searches share. Each search ends with a vote among its finished paths.

proceed --the policy is due--> CHECK --clustered, continue--> resume
vote --> CLUSTER --clustered--> DONE;    CHECK --clustered, stop--> DONE
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import ClassVar, Generic, TypeVar, assert_never

from flashedge.certainty.measures import ENTROPY, REWARD, Checkpoint, History, measure_certainty
from flashedge.certainty.policies import Policy
from flashedge.search.aggregates import aggregate, check_scores, score_per_step
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
    Reached,
    Result,
    Scored,
)
from flashedge.search.tree import ROOT, Node, NodeStatus, Tree, child_seed
from flashedge.types import Granularity, Judges, Limits, NodeId, Problem, Vote

NOTHING = Granularity(max_tokens=0)
"""The granularity of a node whose path can't be continued."""
BUDGET = "budget"
"""The `cut_by` of a search that its token budget ended."""
MAX_PENDING = 256
"""Most checkpoints that a run without a policy remembers. Taking them all at the end costs time in
proportion to their square, and calibration tries no more than a dozen values of `Rule.detect`."""

# ---------------------------------------------------------------- votes


def count_votes(
    ballots: Iterable[tuple[str | None, float]], by: str = "weighted"
) -> tuple[Vote, ...]:
    """Count answers, the winner first. Paths without an answer have no vote. ballots: (num_paths,)
    pairs of a path's cluster and score, in a fixed order. by: `weighted` (sum of scores, ties by
    count) or `majority` (count, ties by sum of scores). If both are equal, the earlier ballot wins.
    Ref: weighted majority vote, arXiv 2408.03314 §5.1."""
    scores: dict[str, list[float]] = {}
    for answer, score in ballots:
        if answer is not None:
            scores.setdefault(answer, []).append(score)
    votes = [Vote(answer=a, weight=math.fsum(s), count=len(s)) for a, s in scores.items()]
    if by == "majority":
        return tuple(sorted(votes, key=lambda v: (-v.count, -v.weight)))
    return tuple(sorted(votes, key=lambda v: (-v.weight, -v.count)))


def choose_answer(tree: Tree, nodes: Sequence[NodeId], *, how: str, by: str) -> Finish:
    """Choose one answer among `nodes`, whose answers in the tree represent their clusters. nodes:
    at least one, in the order that breaks ties. how: the aggregate. by: as in `count_votes`, or
    `best`, which chooses the answer of the best path that has one. The choice is the best path with
    the answer, or the best path of all if none has an answer."""
    scores = {node: aggregate(tree.path_scores(node), how) for node in nodes}
    return choose_by_scores(tree, scores, by=by)


def choose_by_scores(tree: Tree, scores: Mapping[NodeId, float], *, by: str) -> Finish:
    """Choose as `choose_answer`. scores: of each path that takes part, in its order."""
    nodes = tuple(scores)
    ranked = sorted(nodes, key=lambda node: -scores[node])
    votes = count_votes(((tree[node].answer, scores[node]) for node in nodes), by=by)
    if not votes:
        return Finish(choice=ranked[0], answer=None, votes=())
    wanted = {vote.answer for vote in (votes if by == "best" else votes[:1])}
    choice = next(node for node in ranked if tree[node].answer in wanted)
    return Finish(choice=choice, answer=tree[choice].answer, votes=votes)


# ---------------------------------------------------------------- the state


class Phase(StrEnum):
    GENERATE = "generate"
    SCORE = "score"
    CHECK = "check"  # while answers are grouped for the policy
    CLUSTER = "cluster"  # at the end, while answers are grouped for the vote
    DONE = "done"


@dataclass(frozen=True, slots=True, kw_only=True)
class Moment:
    """How far a search had come at a checkpoint. See `Checkpoint` for `progress` and `tokens`."""

    progress: int
    complete: int
    """Number of finished paths."""
    measured: int
    """Number of paths over which certainty is measured."""
    tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchState:
    tree: Tree
    limits: Limits
    phase: Phase = Phase.GENERATE
    complete: tuple[NodeId, ...] = ()
    """Nodes that ended a path, in the order in which the search took them. In the vote, the nodes
    that take part."""
    clustered: tuple[NodeId, ...] = ()
    """The value of `complete` for which answers were last grouped."""
    ask_at: int = 0
    """Progress at which the policy is asked next."""
    history: History = ()
    """The checkpoints so far."""
    pending_checkpoints: tuple[Moment, ...] = ()
    """Where a policy could have been asked in a run that has none. These checkpoints are taken at
    the end, so that answers are grouped only once. Calibration replays policies on them."""
    cut_by: str | None = None
    """See `Finish.cut_by`."""
    is_unboxed: bool = False
    """See `Clustered.is_unboxed`."""

    @property
    def tokens(self) -> int:
        """Committed tokens that the search has decided about."""
        return self.tree.committed_tokens

    @property
    def is_over_budget(self) -> bool:
        budget = self.limits.token_budget
        return budget is not None and self.tokens >= budget

    def remaining_tokens(self, node: NodeId) -> int:
        """Tokens that may still be added to the path of `node`."""
        at = self.tree[node]
        if at.segment is None and at.parent is not None:
            at = self.tree[at.parent]
        return max(0, self.limits.max_path_tokens - at.path_tokens)


S = TypeVar("S", bound=SearchState)
Move = tuple[S, tuple[Command, ...]]
"""A new state and the commands that follow from it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Search(ABC, Generic[S]):
    """A tree search over reasoning steps, which ends with a vote. Subclasses decide what is
    generated. Ref: arXiv 2509.00195 §3.1 (the common pattern)."""

    scores_levels: ClassVar[bool] = True
    """Whether paths are scored."""
    n: int
    """Paths to finish. In MCTS, rollouts."""
    aggregate: str = "last"
    """How step scores become a path's score: last, min, prod or mean."""
    selection: str = "weighted"
    """weighted, majority or best: see `choose_answer`."""
    policy: Policy | None = None
    judges: Judges = "steps"
    """What one score is about: a step, or the whole answer that a node holds."""

    # ------------------------------------------------------------ what subclasses define

    @property
    @abstractmethod
    def name(self) -> str: ...

    @abstractmethod
    def start(self, problem: Problem, seed: int, limits: Limits) -> Move[S]:
        """Create the root and return the first commands."""

    @property
    def max_steps(self) -> int:
        """Depth of the last step, which runs to the path's end. With 1 a step is a whole answer."""
        return 1

    def limit_step(self, depth: int) -> int:
        """Most tokens of a step that follows a node of this depth, unless it is the last step."""
        return 0

    def limit_children(self, state: S) -> int:
        """The most children that a kept node can get. A whole answer gets none."""
        return 0

    @abstractmethod
    def take_segment(self, state: S, node: NodeId) -> Move[S]:
        """Go on after the segment of a node was added."""

    def take_scores(self, state: S, node: NodeId) -> Move[S]:
        """Go on after the scores of a node were added."""
        return state, ()

    @abstractmethod
    def stop(self, state: S) -> Move[S]:
        """End a search that is not voting yet: vote among the paths that it has."""

    def resume(self, state: S) -> Move[S]:
        """Go on after the policy was asked, or was not due."""
        return state, ()

    def list_unfinished(self, state: S) -> Sequence[NodeId]:
        """The nodes among which the answer is sought if no path has ended."""
        return ()

    def awaits_scores(self, state: S, node: NodeId) -> bool:
        return state.phase is Phase.SCORE

    def choose_granularity(self, state: S, node: NodeId) -> Granularity:
        """How far the children of `node` go: one step, or to the path's end if it is the last."""
        depth, room = state.tree[node].depth, state.remaining_tokens(node)
        if depth >= self.max_steps or room == 0:
            return NOTHING
        if depth == self.max_steps - 1:
            return Granularity(max_tokens=room, to_end=True)
        return Granularity(max_tokens=min(self.limit_step(depth), room))

    def ends_path(self, state: S, node: NodeId) -> bool:
        """Whether the model ended the path, the step is the last one, or no token fits."""
        at = state.tree[node]
        stopped = at.segment is not None and at.segment.finish.ends_path
        return stopped or at.depth >= self.max_steps or state.remaining_tokens(node) == 0

    def grow(self, state: S, parent: NodeId, count: int) -> tuple[S, tuple[NodeId, ...], Expand]:
        """Add children to a node. Returns their ids and the command that generates them."""
        bound = self.choose_granularity(state, parent)
        tree, nodes = state.tree.expand(parent, count)
        children = tuple(Child(node=n.id, seed=n.seed) for n in nodes)
        command = Expand(parent=parent, children=children, granularity=bound)
        return replace(state, tree=tree), tuple(n.id for n in nodes), command

    def count_progress(self, state: S) -> int:
        return sum(state.tree[n].status is NodeStatus.COMPLETE for n in state.complete)

    def list_measured(self, state: S) -> Sequence[NodeId]:
        """The paths over which certainty is measured, all of them with grouped answers."""
        return state.complete

    def combine_rewards(self, rewards: Iterable[float]) -> float | None:
        """Certainty by the scores of the measured paths: their maximum, but the mean in MCTS.
        Each is on the scale of one step's score, like the paper's thresholds. None without scores.
        Ref: arXiv 2412.20993 §3.1, App. B.1, which does not cover beam search and best-of-n."""
        return max(rewards, default=None)

    def measure(self, tree: Tree, paths: Sequence[NodeId]) -> dict[str, float]:
        """Certainty over finished paths whose answers are grouped, by measure."""
        values = {ENTROPY: measure_certainty(tree[n].answer for n in paths)}
        if self.scores_levels:
            scores = (tree.path_scores(n) for n in paths)
            values[REWARD] = self.combine_rewards(score_per_step(s, self.aggregate) for s in scores)
        return {name: value for name, value in values.items() if value is not None}

    # ------------------------------------------------------------ ask and tell

    def tell(self, state: S, result: Result) -> Move[S]:
        """Add one result. A repeated one, or one that no command asked for, changes nothing. Raises
        ValueError, without a change, for scores that don't fit the node's steps."""
        match result:
            case Generated(node=node, segment=segment):
                at = state.tree.nodes.get(node)
                if at is None or at.status is not NodeStatus.GENERATING:
                    return state, ()
                grown = replace(state, tree=state.tree.add_segment(node, segment))
                return self.take_segment(grown, node)
            case Scored(node=node, scores=scores):
                at = state.tree.nodes.get(node)
                if at is None or at.status is not NodeStatus.GENERATED or at.scores is not None:
                    return state, ()
                if not self.awaits_scores(state, node):
                    return state, ()
                check_scores(at, scores, self.judges)
                scored = replace(state, tree=state.tree.set_scores(node, scores))
                return self.take_scores(scored, node)
            case Clustered():
                return self._receive_clusters(state, result)
            case ProbeResult() | Reached():
                return state, ()
            case _:
                assert_never(result)

    def conclude(self, state: S) -> Move[S]:
        """Stop now, at a deadline for example, and vote among the paths that ended. If none did,
        answer with the best unfinished path."""
        if state.phase is Phase.DONE:
            return state, ()
        if state.phase is Phase.CLUSTER:
            return state, (Cluster(nodes=state.complete),)
        return self.stop(state)

    def look_ahead(self, state: S, node: NodeId) -> Lookahead:
        """Predict what follows if `node` is kept. Raises KeyError for an unknown node. While the
        node generates, its own tokens are not yet subtracted from what its children may have. A
        kept node gets a prefix of the seeds, or more children when duplicates leave fewer paths
        than the search wants to keep."""
        at = state.tree[node]
        if children := state.tree.list_kept(node):
            seeds = tuple(child.seed for child in children)
        elif self._may_continue(state, at):
            first = len(state.tree.children(node))
            indices = range(first, first + self.limit_children(state))
            seeds = tuple(child_seed(at.seed, at.depth, i) for i in indices)
        else:
            return Lookahead(granularity=NOTHING, seeds=())
        return Lookahead(granularity=self.choose_granularity(state, node), seeds=seeds)

    def _may_continue(self, state: S, node: Node) -> bool:
        budget = state.limits.token_budget
        over = budget is not None and state.tree.committed_tokens >= budget
        if over or state.phase in (Phase.CLUSTER, Phase.DONE):
            return False
        if node.status is NodeStatus.GENERATING:
            return self.choose_granularity(state, node.id) != NOTHING
        return node.status is NodeStatus.GENERATED and not self.ends_path(state, node.id)

    # ------------------------------------------------------------ checkpoints

    def find_first_ask(self) -> int:
        """The progress at which the policy is asked for the first time."""
        return max(1, self.n if self.policy is None else self.policy.allot((), self.n).more)

    def is_policy_due(self, state: S) -> bool:
        due = self.policy is not None and self.count_progress(state) >= state.ask_at
        return due and bool(state.complete)

    def check(self, state: S) -> Move[S]:
        """Group the answers, and then ask the policy, which is due."""
        return self._use_clusters(replace(state, phase=Phase.CHECK))

    def remember_checkpoint(self, state: S) -> S:
        """Note this point of a run that has no policy, to take its checkpoint at the end."""
        full = len(state.pending_checkpoints) >= MAX_PENDING
        if self.policy is not None or not state.complete or full:
            return state
        pending = (*state.pending_checkpoints, self._note_moment(state))
        return replace(state, pending_checkpoints=pending)

    def consult(self, state: S) -> tuple[S, bool]:
        """Take a checkpoint and ask the policy. The second value says whether to continue."""
        assert self.policy is not None, "without a policy nothing is checked"
        state = self.take_checkpoints(state)
        allotment = self.policy.allot(state.history, self.n)
        if allotment.more <= 0:
            return replace(state, cut_by=str(allotment.reason)), False
        return replace(state, ask_at=state.history[-1].progress + allotment.more), True

    def _note_moment(self, state: S) -> Moment:
        return Moment(
            progress=self.count_progress(state),
            complete=len(state.complete),
            measured=len(self.list_measured(state)),
            tokens=state.tokens,
        )

    def take_checkpoints(self, state: S) -> S:
        """Take the remembered checkpoints, the first at each progress, and one now. They equal what
        a policy would have seen: answers are grouped in order, so that the groups of the first
        paths do not depend on later ones."""
        taken: list[Checkpoint] = []
        for moment in state.pending_checkpoints:
            if not taken or moment.progress > taken[-1].progress:
                taken.append(self._measure(state, moment))
        taken.append(self._measure(state, self._note_moment(state)))
        return replace(state, history=(*state.history, *taken), pending_checkpoints=())

    def _measure(self, state: S, moment: Moment) -> Checkpoint:
        """Measure the certainty at a moment. Answers without a box do not count, since a later path
        may have a box."""
        tree, complete = state.tree, state.complete[: moment.complete]
        if state.is_unboxed:
            tree = tree.set_answers(dict.fromkeys(complete))
        paths = self.list_measured(state)[: moment.measured]
        return Checkpoint(
            progress=moment.progress,
            tokens=moment.tokens,
            answers=sum(tree[n].answer is not None for n in paths),
            measures=self.measure(tree, paths),
            answer=self.elect(tree, complete).answer,
        )

    # ------------------------------------------------------------ the vote

    def settle(
        self, state: S, nodes: Sequence[NodeId], family: Callable[[NodeId], int] = lambda node: 0
    ) -> tuple[S, list[NodeId]]:
        """Mark generated nodes: COMPLETE where the path ends, else ACTIVE for the first with each
        text in a family and DUPLICATE for the others. nodes: ascending ids. The second value holds
        the active nodes."""
        ended = [node for node in nodes if self.ends_path(state, node)]
        unfinished = sorted(set(nodes).difference(ended))
        first: dict[tuple[int, str], NodeId] = {}
        for node in unfinished:
            first.setdefault((family(node), state.tree.path_text(node).strip()), node)
        tree = state.tree.mark(
            dict.fromkeys(unfinished, NodeStatus.DUPLICATE)
            | dict.fromkeys(first.values(), NodeStatus.ACTIVE)
            | dict.fromkeys(ended, NodeStatus.COMPLETE)
        )
        return replace(state, tree=tree, complete=(*state.complete, *ended)), list(first.values())

    def settle_open(self, state: S, nodes: Iterable[NodeId]) -> S:
        """Mark open nodes when the search stops: generating ones as CANCELLED, and generated ones
        as COMPLETE where their path ends, else as ACTIVE."""
        changes: dict[NodeId, NodeStatus] = {}
        for node in nodes:
            status = state.tree[node].status
            if status is NodeStatus.GENERATING:
                changes[node] = NodeStatus.CANCELLED
            elif status is NodeStatus.GENERATED:
                ended = self.ends_path(state, node)
                changes[node] = NodeStatus.COMPLETE if ended else NodeStatus.ACTIVE
        complete = [node for node, status in changes.items() if status is NodeStatus.COMPLETE]
        return replace(state, tree=state.tree.mark(changes), complete=(*state.complete, *complete))

    def vote(self, state: S, cut_by: str | None = None) -> Move[S]:
        """End the search: group the answers of `complete`, or of the best path if none ended."""
        state = replace(state, cut_by=cut_by)
        nodes = state.complete or self._choose_unfinished(state)
        if not nodes:
            done = replace(state, phase=Phase.DONE)
            return done, (Finish(choice=ROOT, answer=None, votes=(), cut_by=cut_by),)
        return self._use_clusters(replace(state, phase=Phase.CLUSTER, complete=nodes))

    def _choose_unfinished(self, state: S) -> tuple[NodeId, ...]:
        """(node,) of the path with the best score that has not ended, or () without such a path. It
        is one of the unfinished nodes, or a parent if none of its unfinished children has a
        segment. Ties go to the deeper node, then to the lower id."""
        tree, nodes = state.tree, self.list_unfinished(state)
        generated = [n for n in nodes if tree[n].segment is not None]
        dropped = {NodeStatus.PRUNED, NodeStatus.DUPLICATE}
        live = {n for n in generated if tree[n].status not in dropped}
        parents = {p for n in nodes if (p := tree[n].parent) is not None and p != ROOT}
        live |= parents - {p for n in generated if (p := tree[n].parent) is not None}
        key = {n: (-self.score_path(state, n), -tree[n].depth, n) for n in live}
        return (min(live, key=key.__getitem__),) if live else ()

    def _receive_clusters(self, state: S, result: Clustered) -> Move[S]:
        expected = state.phase in (Phase.CHECK, Phase.CLUSTER)
        if not expected or result.answers.keys() != set(state.complete):
            return state, ()
        tree = state.tree.set_answers(result.answers)
        state = replace(state, tree=tree, clustered=state.complete)
        return self._use_clusters(replace(state, is_unboxed=result.is_unboxed))

    def _use_clusters(self, state: S) -> Move[S]:
        """Check or finish, once the answers of `complete` are grouped."""
        if state.clustered != state.complete:
            return state, (Cluster(nodes=state.complete),)
        if state.phase is Phase.CLUSTER:
            return self.finish(self.take_checkpoints(state))
        state, continues = self.consult(state)
        return self.resume(state) if continues else self.finish(state)

    def finish(self, state: S) -> Move[S]:
        return replace(state, phase=Phase.DONE), (self.choose(state),)

    def choose(self, state: S) -> Finish:
        finish = self.elect(state.tree, state.complete)
        unboxed = state.is_unboxed and finish.answer is not None
        return replace(finish, cut_by=state.cut_by, unboxed=unboxed)

    def elect(self, tree: Tree, nodes: Sequence[NodeId]) -> Finish:
        """Choose the answer of finished paths. nodes: in the order in which they were taken."""
        return choose_answer(tree, nodes, how=self.aggregate, by=self.selection)

    def score_path(self, state: S, node: NodeId) -> float:
        return aggregate(state.tree.path_scores(node), self.aggregate)
