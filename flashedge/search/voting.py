"""What the searches share that vote among finished paths: checkpoints, the policy, the answer.

proceed --the policy is due--> CHECK --clustered, continue--> resume
vote --> CLUSTER --clustered--> DONE;    CHECK --clustered, stop--> DONE
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, Generic, TypeVar

from flashedge.certainty.certainindex import measure_certainty
from flashedge.certainty.history import ENTROPY, REWARD
from flashedge.certainty.policies import Policy
from flashedge.certainty.rewards import max_reward
from flashedge.search.answer_choice import choose_answer
from flashedge.search.base import Cluster, Clustered, Command, Finish
from flashedge.search.checkpoints import (
    remember_checkpoint,
    take_checkpoint,
    take_pending_checkpoints,
)
from flashedge.search.scoring import aggregate, score_per_step
from flashedge.search.tree import ROOT, NodeStatus
from flashedge.search.voting_state import Phase, VotingState
from flashedge.types import Judges, NodeId

S = TypeVar("S", bound=VotingState)


@dataclass(frozen=True, slots=True, kw_only=True)
class VotingSearch(ABC, Generic[S]):
    """A search that ends with a vote. Subclasses decide what is generated."""

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

    # ------------------------------------------------------------ what subclasses define

    @abstractmethod
    def resume(self, state: S) -> tuple[S, tuple[Command, ...]]:
        """Go on, after the policy was asked if it was due."""

    @abstractmethod
    def list_unfinished(self, state: S) -> Sequence[NodeId]:
        """The nodes among which the answer is sought if no path has ended."""

    def progress(self, state: S) -> int:
        """How much of `n` is used up."""
        return sum(state.tree[n].status is NodeStatus.COMPLETE for n in state.complete)

    def measured_paths(self, state: S) -> Sequence[NodeId]:
        """The paths over which certainty is measured. Their answers are known."""
        return state.complete

    def reward(self, rewards: Iterable[float]) -> float | None:
        """Certainty by the scores of the measured paths."""
        return max_reward(rewards)

    def measures(self, state: S) -> dict[str, float]:
        """Certainty of a state whose finished paths are clustered, by measure."""
        tree, paths = state.tree, self.measured_paths(state)
        values = {ENTROPY: measure_certainty(tree[n].answer for n in paths)}
        if self.verifies:
            scores = (tree.path_scores(n) for n in paths)
            values[REWARD] = self.reward(score_per_step(s, self.aggregate) for s in scores)
        return {name: value for name, value in values.items() if value is not None}

    # ------------------------------------------------------------ what subclasses call

    def find_first_ask(self) -> int:
        """The progress at which the policy is asked for the first time."""
        return max(1, self.n if self.policy is None else self.policy.allot((), self.n).more)

    def is_policy_due(self, state: S) -> bool:
        due = self.policy is not None and self.progress(state) >= state.ask_at
        return due and bool(state.complete)

    def check(self, state: S) -> tuple[S, tuple[Command, ...]]:
        """Ask the policy, which is due, as soon as answers are grouped."""
        return self.use_clusters(replace(state, phase=Phase.CHECK))

    def remember_checkpoint(self, state: S) -> S:
        """Without a policy: remember this point for the end of the run."""
        return remember_checkpoint(self, state)

    def consult(self, state: S) -> tuple[S, bool]:
        """Take a checkpoint and ask the policy. The second value: whether the search continues."""
        assert self.policy is not None, "without a policy nothing is checked"
        state = take_checkpoint(self, state)
        allotment = self.policy.allot(state.history, self.n)
        if allotment.more <= 0:
            return replace(state, cut_by=str(allotment.reason)), False
        return replace(state, ask_at=state.history[-1].progress + allotment.more), True

    def vote(self, state: S, cut_by: str | None = None) -> tuple[S, tuple[Command, ...]]:
        """End the search: group the answers of `complete`, or of the best path if none ended."""
        state = replace(state, cut_by=cut_by)
        nodes = state.complete or state.best_unfinished(
            self.list_unfinished(state), lambda n: self.path_score(state, n)
        )
        if not nodes:
            done = replace(state, phase=Phase.DONE)
            return done, (Finish(choice=ROOT, answer=None, votes=(), cut_by=cut_by),)
        return self.use_clusters(replace(state, phase=Phase.CLUSTER, complete=nodes))

    def receive_clusters(self, state: S, result: Clustered) -> tuple[S, tuple[Command, ...]]:
        expected = state.phase in (Phase.CHECK, Phase.CLUSTER)
        if not expected or result.answers.keys() != set(state.complete):
            return state, ()
        tree = state.tree.set_answers(result.answers)
        state = replace(state, tree=tree, clustered=state.complete)
        return self.use_clusters(replace(state, is_unboxed=result.is_unboxed))

    def use_clusters(self, state: S) -> tuple[S, tuple[Command, ...]]:
        """Check or finish, once the answers of `complete` are grouped."""
        if state.clustered != state.complete:
            return state, (Cluster(nodes=state.complete),)
        if state.phase is Phase.CLUSTER:
            return self.finish(take_checkpoint(self, take_pending_checkpoints(self, state)))
        state, continues = self.consult(state)
        return self.resume(state) if continues else self.finish(state)

    def finish(self, state: S) -> tuple[S, tuple[Command, ...]]:
        """Choose the answer. The answers of `complete` are grouped."""
        return replace(state, phase=Phase.DONE), (self.choose(state),)

    def choose(self, state: S) -> Finish:
        finish = choose_answer(state.tree, state.complete, how=self.aggregate, by=self.selection)
        unboxed = state.is_unboxed and finish.answer is not None
        return replace(finish, cut_by=state.cut_by, unboxed=unboxed)

    def path_score(self, state: S, node: NodeId) -> float:
        return aggregate(state.tree.path_scores(node), self.aggregate)
