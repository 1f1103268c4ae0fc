"""Monte Carlo tree search that keeps the nodes of its simulations, with rollouts in parallel.

launch: find a leaf -> expand it, wait at it, or end there. A waiting rollout does the same below
        its node, once that is expanded
take:   settle an expansion -> end the rollout, or expand its best child
"""

import math
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field, replace
from statistics import fmean
from typing import ClassVar

from flashedge.search.aggregates import softmax
from flashedge.search.base import Command, Finish, Result
from flashedge.search.mcts.exits import FUTILITY, Exits
from flashedge.search.mcts.rollouts import (
    Allowance,
    Flight,
    MctsState,
    Move,
    NodeStatistics,
    Stage,
    Statistics,
    cancel_flights,
    choose_least,
    list_path,
    note_result,
    visit,
)
from flashedge.search.tree import ROOT, NodeStatus, Tree
from flashedge.search.voting import BUDGET, Phase, Search
from flashedge.types import Limits, NodeId, Problem, Segment

LAUNCH, ARRIVAL = "launch", "arrival"
"""The values of `Mcts.take`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Mcts(Search[MctsState]):
    """A rollout descends from the root to a leaf by WU-PUCT. It gives the leaf `branching` children
    and continues with the child of highest reward until a path ends. The path's reward, its
    aggregate (prod in the paper), counts at all of its nodes.

    Up to `parallel` rollouts are in flight. Their unit of work is an expansion: the children of one
    node, generated and scored. Results are *taken* in the order in which the expansions began; what
    arrives earlier waits for its turn. Only a turn changes what selection sees, so seed and
    `parallel` fix the tree.

    A rollout that reaches a node which another one is expanding waits there. It goes on from the
    children in the turn of that expansion, so no node is expanded twice. While it waits it counts
    as in flight on its path, which sends later rollouts to other branches.

    Ref: arXiv 2604.00510 §4.2, App. A (node-reusing MCTS); arXiv 2412.20993 App. A. Departures: an
    unvisited child has the verifier's reward as its value, not 0; a finished path is rolled out at
    most once; a path that ends beside a rollout's own has a vote too; the search ends before n
    rollouts if no leaf is open.
    """

    name: ClassVar[str] = "mcts"
    branching: int = 4
    max_step_tokens: int = 256
    max_steps: int = 40
    c: float = 1.0
    """Weight of exploration in WU-PUCT."""
    prior: str = "logprob"
    """logprob (see `compute_priors`) or uniform."""
    parallel: int = 1
    """P: most rollouts in flight, until an `Allowance` says otherwise."""
    take: str = LAUNCH
    """launch takes results in the order of expansion, and arrival as they arrive. With arrival the
    tree depends on the engines."""
    script: tuple[tuple[int, int], ...] = ()
    """The `changes` of an earlier run, to repeat its tree."""
    exits: Exits = field(default_factory=Exits)

    def __post_init__(self) -> None:
        self.exits.check(self.aggregate)

    # ------------------------------------------------------------ ask and tell

    def start(self, problem: Problem, seed: int, limits: Limits) -> Move:
        state = MctsState(
            tree=Tree.from_seed(seed),
            limits=limits,
            ask_at=self.find_first_ask(),
            allowance=self.parallel,
        )
        return self.run(state)

    def tell(self, state: MctsState, result: Result | Allowance) -> Move:
        """Raises ValueError, changing nothing, for scores that don't fit the node's steps, or an
        allowance below 1."""
        if isinstance(result, Allowance):
            new, commands = self._change_allowance(state, result.rollouts)
        else:
            # dataclass(slots=True) makes a new class, which zero-argument super() does not know.
            new, commands = Search.tell(self, state, result)
        return (state, ()) if new is state else self.run(new, commands)

    def take_segment(self, state: MctsState, node: NodeId) -> Move:
        return note_result(state, node)

    def awaits_scores(self, state: MctsState, node: NodeId) -> bool:
        return state.find_expander(node).stage is Stage.SCORING

    def take_scores(self, state: MctsState, node: NodeId) -> Move:
        return note_result(state, node)

    def stop(self, state: MctsState) -> Move:
        flying = state.list_flying_nodes(state.flights)
        state = self.settle_open(state, flying)
        tokens = state.tree.committed_tokens
        return self.vote(replace(state, taken_tokens=tokens, frontier=flying or state.frontier))

    def limit_step(self, depth: int) -> int:
        return self.max_step_tokens

    def limit_children(self, state: MctsState) -> int:
        return self.branching

    def resume(self, state: MctsState) -> Move:
        return replace(state, phase=Phase.GENERATE, turn=state.turn + 1), ()

    def list_unfinished(self, state: MctsState) -> Sequence[NodeId]:
        return state.frontier

    def count_progress(self, state: MctsState) -> int:
        return len(state.rollouts)

    def list_measured(self, state: MctsState) -> Sequence[NodeId]:
        return state.rollouts or state.complete

    def combine_rewards(self, rewards: Iterable[float]) -> float | None:
        values = list(rewards)
        return fmean(values) if values else None

    def vote(self, state: MctsState, cut_by: str | None = None) -> Move:
        """End the search. What is in flight is cancelled."""
        flying = state.list_flying_nodes(state.flights)
        state = replace(state, frontier=(*state.frontier, *flying))
        state, cancels = cancel_flights(state, state.flights)
        state, commands = Search.vote(self, state, cut_by)
        return state, (*cancels, *commands)

    def finish(self, state: MctsState) -> Move:
        """Choose the answer, and cancel what is still in flight."""
        state, cancels = cancel_flights(state, state.flights)
        state, commands = Search.finish(self, state)
        return state, (*cancels, *commands)

    def choose(self, state: MctsState) -> Finish:
        return replace(Search.choose(self, state), unlikely=state.gave_up)

    # ------------------------------------------------------------ between two results

    def run(self, state: MctsState, commands: Iterable[Command] = ()) -> Move:
        """Go on until the search has to wait for a result. `commands` come first."""
        done = list(commands)
        while (move := self._step(state)) is not None:
            state, new = move
            done += new
        return state, tuple(done)

    def _step(self, state: MctsState) -> Move | None:
        """Launch, change the allowance, take or end: the first that is due. None if the search has
        to wait for a result."""
        if not state.is_searching:
            return None
        if state.phase is Phase.GENERATE and (move := self._launch(state)) is not None:
            return move
        done = len(state.changes)
        if done < len(self.script) and self.script[done][0] == state.turn:
            return self._change_allowance(state, self.script[done][1])
        if state.phase is not Phase.GENERATE:
            return None
        turns = state.expanders[:1] if self.take == LAUNCH else state.expanders
        if (ready := next((f for f in turns if f.stage is Stage.READY), None)) is not None:
            return self._take(state, ready)
        return None if state.flights else self._end(state)

    def _change_allowance(self, state: MctsState, rollouts: int) -> Move:
        if rollouts < 1:
            raise ValueError(f"an allowance of {rollouts} rollouts")
        if not state.is_searching or rollouts == state.allowance:
            return state, ()
        least = choose_least(state.flights, len(state.flights) - rollouts)
        state = replace(
            state,
            allowance=rollouts,
            changes=(*state.changes, (state.turn, rollouts)),
            num_cancelled=state.num_cancelled + len(least),
        )
        return cancel_flights(state, least)

    def _launch(self, state: MctsState) -> Move | None:
        """Continue a waiting rollout whose node is expanded, or launch a new one. None if neither
        is possible."""
        expanding = state.expanding
        for flight in state.flights:
            if flight.stage is Stage.WAITING and flight.node not in expanding:
                return self._place(state.remove_flight(flight), flight)
        room = min(state.allowance, self.n - self._count_done(state))
        if len(state.flights) >= room or state.statistics[ROOT].is_closed:
            return None
        number = state.num_launched
        flight = Flight(number=number, node=ROOT, stage=Stage.WAITING, reward=1.0)
        return self._place(replace(state, num_launched=number + 1), flight)

    def _count_done(self, state: MctsState) -> int:
        return len(state.rollouts) + state.num_futile

    def _place(self, state: MctsState, flight: Flight) -> Move:
        """Let a rollout that is not in flight find a leaf below its node. If no leaf is open, the
        rollout is dropped."""
        state, leaf = self._find_leaf(state, flight.node)
        if leaf is None:
            return state, ()
        flight = replace(flight, node=leaf)
        if leaf in state.expanding:
            waiting = replace(flight, stage=Stage.WAITING)
            return replace(state, num_waits=state.num_waits + 1).add_flight(waiting), ()
        if state.tree[leaf].status is NodeStatus.COMPLETE:
            return self._end_rollout(state, leaf)
        return self._expand(state, flight)

    def _find_leaf(self, state: MctsState, start: NodeId) -> tuple[MctsState, NodeId | None]:
        """Find an open leaf below `start`, or else anywhere, closing futile ones."""
        while True:
            statistics = state.statistics
            leaf = select_leaf(state.tree, statistics, start, state.expanding, c=self.c)
            if leaf is None:
                if start == ROOT:
                    return state, None
                start = ROOT
            elif leaf not in state.expanding and self.exits.is_cut(state, leaf):
                statistics = close_node(state.tree, statistics, leaf)
                state = replace(state, statistics=statistics, has_cut_leaves=True)
            else:
                return state, leaf

    def _expand(self, state: MctsState, flight: Flight) -> Move:
        state, nodes, expand = self.grow(state, flight.node, self.branching)
        statistics = state.statistics.update((node, NodeStatistics()) for node in nodes)
        flight = replace(flight, stage=Stage.GENERATING)
        return replace(state, statistics=statistics).add_flight(flight), (expand,)

    # ------------------------------------------------------------ the turn of an expansion

    def _take(self, state: MctsState, flight: Flight) -> Move:
        """Take the results of an expansion: its rollout goes on or ends."""
        state, best = self._settle(state, flight.node)
        state = self.exits.count_leaves(state.remove_flight(flight), flight.node)
        cut = self.exits.list_cut(state)
        state = replace(state, num_futile=state.num_futile + len(cut))
        state, commands = cancel_flights(state, cut)
        if state.tree[best].status is NodeStatus.COMPLETE:
            state, others = self._end_rollout(state, best)
            return state, (*commands, *others)
        is_cut = self.exits.is_cut(state, best)
        if is_cut:
            state = replace(state, num_futile=state.num_futile + 1)
        if (end := self._exit(state)) is not None:
            state, others = end
        elif is_cut:
            others = ()
        else:
            state, others = self._expand(state, replace(flight, node=best))
        return state, (*commands, *others)

    def _settle(self, state: MctsState, node: NodeId) -> tuple[MctsState, NodeId]:
        """Note what the expansion of `node` found, and return its best child. Marks ended paths and
        duplicates, and notes the children's rewards and priors. Ties go to the older child."""
        nodes = state.list_new_children(node)
        state, _ = self.settle(state, nodes)
        tree = state.tree
        children = tree.list_kept(node)
        segments = [child.segment for child in children if child.segment is not None]
        count = len(children)
        priors = compute_priors(segments) if self.prior != "uniform" else (1.0 / count,) * count
        tokens = sum(tree[child].num_tokens for child in nodes)
        known = state.statistics
        changes = {child: replace(known[child], is_closed=True) for child in nodes}
        for child, share in zip(children, priors, strict=True):
            reward = self.score_path(state, child.id)
            changes[child.id] = replace(known[child.id], reward=reward, prior=share)
        ended = (child for child in nodes if tree[child].status is NodeStatus.COMPLETE)
        state = replace(
            state,
            statistics=known.update(changes.items()),
            turn=state.turn + 1,
            taken_tokens=state.taken_tokens + tokens,
            frontier=nodes,
            best_reward=max([state.best_reward, *(changes[child].reward for child in ended)]),
        )
        ranked = sorted((child.id for child in children), key=lambda c: (-changes[c].reward, c))
        return state, ranked[0]

    def _end_rollout(self, state: MctsState, leaf: NodeId) -> Move:
        """Note a rollout that ended in `leaf`, and close the leaf to later ones."""
        path, reward = list_path(state.tree, leaf), state.statistics[leaf].reward
        statistics = close_node(state.tree, visit(state.statistics, path, reward), leaf)
        state = replace(state, statistics=statistics, rollouts=(*state.rollouts, leaf))
        if (end := self._exit(state)) is not None:
            return end
        if self._count_done(state) < self.n:
            if self.is_policy_due(state):
                return self.check(state)
            state = self.remember_checkpoint(state)
        return state, ()

    def _exit(self, state: MctsState) -> Move | None:
        """End the search if its budget is spent or an exit is reached, unless all n rollouts are
        done anyway."""
        if self._count_done(state) == self.n:
            return None
        if state.is_over_budget:
            return self.vote(state, cut_by=BUDGET)
        reason = self.exits.find_reason(state)
        if reason is None:
            return None
        return self.vote(replace(state, gave_up=reason == FUTILITY), cut_by=reason)

    def _end(self, state: MctsState) -> Move:
        """End the search when nothing is in flight and nothing may be launched."""
        tree = state.tree
        active = (n.id for n in tree.nodes.values() if n.status is NodeStatus.ACTIVE)
        unopened = [node for node in active if not tree.children(node)]
        state = replace(state, tree=tree.mark(dict.fromkeys(unopened, NodeStatus.PRUNED)))
        if self._count_done(state) == self.n or not state.has_cut_leaves:
            return self.vote(state)
        gave_up = state.best_reward < self.exits.futile
        return self.vote(replace(state, gave_up=gave_up), cut_by=FUTILITY)


# ---------------------------------------------------------------- selection


def compute_puct(q: float, prior: float, *, visits: int, parent_visits: int, c: float) -> float:
    """Q + c * P * sqrt(Ñ(s)) / (1 + Ñ(s, a)). q, prior in [0, 1]. visits, parent_visits: ended
    rollouts and those in flight (WU-PUCT), which makes a child that others are exploring less
    attractive. Ref: arXiv 2604.00510 §4.2; Liu et al. 2018 (WU-UCT)."""
    return q + c * prior * math.sqrt(parent_visits) / (1 + visits)


def compute_priors(segments: Sequence[Segment]) -> tuple[float, ...]:
    """Softmax of the mean token log-probability of each child. segments: (k,) of the children ->
    (k,) priors with sum 1. Ref: arXiv 2604.00510 App. A. Departure: the mean, since the sum favours
    short steps."""
    means = [math.fsum(s.logprobs) / max(1, len(s.logprobs)) for s in segments]
    return softmax(means, 1.0)


def select_leaf(
    tree: Tree, statistics: Statistics, start: NodeId, expanding: Collection[NodeId], *, c: float
) -> NodeId | None:
    """Descend from `start` by WU-PUCT to a leaf or a node that is being expanded, ties to the older
    child. None if nothing below `start` is open. Ñ(s) is the sum of Ñ(s, a) over the children, so
    rollouts that wait at s do not count until they have chosen. With one rollout this is N(s). Ref:
    arXiv 2604.00510 §4.2."""
    node = start
    if statistics[node].is_closed:
        return None
    while node not in expanding and (children := tree.list_kept(node)):
        known = [(child.id, statistics[child.id]) for child in children]
        total = sum(at.expected_visits for _, at in known)
        ranked = []
        for child, at in known:
            if not at.is_closed:
                visits = at.expected_visits
                score = compute_puct(at.mean, at.prior, visits=visits, parent_visits=total, c=c)
                ranked.append((-score, child))
        node = min(ranked)[1]
    return node


def close_node(tree: Tree, statistics: Statistics, node: NodeId) -> Statistics:
    """Close a node that leads to no open leaf, and all nodes above it that then lead to none."""
    changes: dict[NodeId, NodeStatistics] = {node: replace(statistics[node], is_closed=True)}
    at: NodeId | None = tree[node].parent
    while at is not None:
        below = tree.list_kept(at)
        if not all(child.id in changes or statistics[child.id].is_closed for child in below):
            break
        changes[at] = replace(statistics[at], is_closed=True)
        at = tree[at].parent
    return statistics.update(changes.items())
