"""Monte Carlo tree search that keeps the nodes of its simulations, with rollouts in parallel."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import assert_never

from flashedge.certainty.rewards import mean_reward
from flashedge.search.base import (
    Allowance,
    Cluster,
    Clustered,
    Finish,
    Generated,
    Lookahead,
    ProbeResult,
    Reached,
    Result,
    Scored,
)
from flashedge.search.mcts.arrivals import receive_scores, receive_segment
from flashedge.search.mcts.cancellation import cancel_flights, list_flying_nodes
from flashedge.search.mcts.rollouts import RolloutSearch
from flashedge.search.mcts.selection import list_children
from flashedge.search.mcts.state import MctsState, Move
from flashedge.search.seeds import child_seed
from flashedge.search.tree import NodeStatus, Tree
from flashedge.search.voting import VotingSearch
from flashedge.search.voting_state import NOTHING, Phase
from flashedge.types import Limits, NodeId, Problem


@dataclass(frozen=True, slots=True, kw_only=True)
class Mcts(RolloutSearch):
    """A rollout descends from the root to a leaf by WU-PUCT. It gives the leaf `branching` children
    and continues with the child of highest reward until a path ends. The path's reward, its
    aggregate (prod in the paper), counts at all of its nodes.

    Up to `parallel` rollouts are in flight, each at its own stage. The unit of work is an
    expansion: the children of one node, generated and scored. Results are *taken* in the order in
    which the expansions began; what arrives earlier waits for its turn. Only a turn changes what
    selection sees, so seed and `parallel` fix the tree whatever arrives first.

    A rollout that reaches a node which another one is expanding waits there, and goes on from its
    children in the turn of that expansion. So no node is expanded twice, and no path is found
    twice. While it waits it counts as in flight on its path, which sends the rollouts behind it
    elsewhere: near the root, where all children are still being expanded, they spread over the
    branches instead of queueing at the best one. Had it not been launched, every later rollout
    would stop at the same node; had it been kept out of that node, it would take a worse branch
    only because the better one is busy.

    Ref: arXiv 2604.00510 §4.2, App. A (node-reusing MCTS); arXiv 2412.20993 App. A.
    Departures: an unvisited child has the verifier's reward as its value, not 0; a finished path is
    rolled out at most once; finished siblings of a trajectory take part in the choice; the search
    ends before n rollouts if no leaf is open.
    """

    def __post_init__(self) -> None:
        """Raises RequestError for an exit that is unsound under this aggregate."""
        self.exits.check(self.aggregate)

    @property
    def name(self) -> str:
        return "mcts"

    # ------------------------------------------------------------ ask and tell

    def start(self, problem: Problem, seed: int, limits: Limits) -> Move:
        """Create the root and launch the first rollouts."""
        state = MctsState(
            tree=Tree.from_seed(seed),
            limits=limits,
            ask_at=self.find_first_ask(),
            allowance=self.parallel,
        )
        return self.run(state)

    def tell(self, state: MctsState, result: Result) -> Move:
        """Raises ValueError, changing nothing, for scores that don't fit the node's steps."""
        match result:
            case Generated():
                new, commands = receive_segment(state, result)
            case Scored():
                new, commands = receive_scores(state, result)
            case Clustered():
                new, commands = self.receive_clusters(state, result)
            case Allowance(rollouts=rollouts):
                new, commands = self.change_allowance(state, rollouts)
            case ProbeResult() | Reached():
                return state, ()
            case _:
                assert_never(result)
        return (state, ()) if new is state else self.run(new, commands)

    def conclude(self, state: MctsState) -> Move:
        """Vote among the paths that ended. If none did, answer with the best unfinished path."""
        if state.phase is Phase.DONE:
            return state, ()
        if state.phase is Phase.CLUSTER:
            return state, (Cluster(nodes=state.complete),)
        flying = list_flying_nodes(state, state.flights)
        changes: dict[NodeId, NodeStatus] = {}
        for node in flying:
            if state.tree[node].status is NodeStatus.GENERATING:
                changes[node] = NodeStatus.CANCELLED
            else:
                ended = self.ends_path(state, node)
                changes[node] = NodeStatus.COMPLETE if ended else NodeStatus.ACTIVE
        tree = state.tree.mark(changes)
        ended_now = tuple(n for n, s in changes.items() if s is NodeStatus.COMPLETE)
        state = replace(
            state,
            tree=tree,
            complete=(*state.complete, *ended_now),
            taken_tokens=tree.committed_tokens,
            frontier=flying or state.frontier,
        )
        return self.vote(state)

    def lookahead(self, state: MctsState, node: NodeId) -> Lookahead:
        """See the contract. The seeds are those of all children that the node would get."""
        at = state.tree[node]
        if children := list_children(state.tree, node):
            seeds = tuple(child.seed for child in children)
            return Lookahead(granularity=self.granularity(state, node), seeds=seeds, terminal=False)
        if not self._may_continue(state, node):
            return Lookahead(granularity=NOTHING, seeds=(), terminal=True)
        first = len(state.tree.children(node))
        indices = range(first, first + self.branching)
        seeds = tuple(child_seed(at.seed, at.depth, i) for i in indices)
        return Lookahead(granularity=self.granularity(state, node), seeds=seeds, terminal=False)

    # ------------------------------------------------------------ what a search that votes needs

    def resume(self, state: MctsState) -> Move:
        return replace(state, phase=Phase.GENERATE, turn=state.turn + 1), ()

    def list_unfinished(self, state: MctsState) -> Sequence[NodeId]:
        return state.frontier

    def progress(self, state: MctsState) -> int:
        return len(state.rollouts)

    def measured_paths(self, state: MctsState) -> Sequence[NodeId]:
        return state.rollouts or state.complete

    def reward(self, rewards: Iterable[float]) -> float | None:
        return mean_reward(rewards)

    def vote(self, state: MctsState, cut_by: str | None = None) -> Move:
        """End the search. What is in flight is cancelled."""
        flying = list_flying_nodes(state, state.flights)
        state, cancels = cancel_flights(
            replace(state, frontier=(*state.frontier, *flying)), state.flights
        )
        state, commands = VotingSearch.vote(self, state, cut_by)
        return state, (*cancels, *commands)

    def finish(self, state: MctsState) -> Move:
        """Choose the answer, and cancel what is still in flight."""
        state, cancels = cancel_flights(state, state.flights)
        state, commands = VotingSearch.finish(self, state)
        return state, (*cancels, *commands)

    def choose(self, state: MctsState) -> Finish:
        return replace(VotingSearch.choose(self, state), unlikely=state.gave_up)

    # ------------------------------------------------------------ inner

    def _may_continue(self, state: MctsState, node: NodeId) -> bool:
        at, budget = state.tree[node], state.limits.token_budget
        if not state.is_searching or (budget is not None and state.tree.committed_tokens >= budget):
            return False
        if at.status is NodeStatus.GENERATING:
            return self.granularity(state, node) != NOTHING
        return at.status is NodeStatus.GENERATED and not self.ends_path(state, node)
