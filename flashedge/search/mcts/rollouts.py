"""How MCTS launches rollouts and takes their results. See `strategies.mcts`.

launch: find a leaf -> expand it, or wait at it, or end there. So do rollouts whose node was
        expanded meanwhile: they find a leaf below it
take:   settle an expansion -> end the rollout, or expand its best child
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from flashedge.search.base import Child, Command, Expand
from flashedge.search.flights import Flight, Stage
from flashedge.search.mcts.cancellation import cancel_flights, choose_least
from flashedge.search.mcts.exits.exits import Exits
from flashedge.search.mcts.exits.futility import FUTILITY
from flashedge.search.mcts.selection import close_node, list_path, select_leaf
from flashedge.search.mcts.settlement import settle_expansion
from flashedge.search.mcts.state import MctsState, Move
from flashedge.search.step_bounds import bound_step, ends_path
from flashedge.search.tree import ROOT, NodeStatus
from flashedge.search.voting import VotingSearch
from flashedge.search.voting_state import BUDGET, Phase
from flashedge.types import Granularity, NodeId

LAUNCH, ARRIVAL = "launch", "arrival"


@dataclass(frozen=True, slots=True, kw_only=True)
class RolloutSearch(VotingSearch[MctsState]):
    """The part of MCTS that acts, between two results."""

    branching: int = 4
    """Children of each expanded node."""
    max_step_tokens: int = 256
    """Longest step."""
    max_steps: int = 40
    """Depth of the last step, which runs to the end of the path."""
    c: float = 1.0
    """Weight of exploration."""
    prior: str = "logprob"
    """Prior of a child: logprob or uniform."""
    parallel: int = 1
    """P: most rollouts in flight, until an `Allowance` says otherwise."""
    boost: bool = False
    """Whether the runtime sends allowances. The search does as they say either way."""
    take: str = LAUNCH
    """launch, or arrival: take results as they complete. Then the tree depends on the engines."""
    script: tuple[tuple[int, int], ...] = ()
    """The `changes` of an earlier run, to be repeated. A run whose allowance changed is a function
    of its seed, `parallel` and these, unless it takes results by arrival."""
    exits: Exits = field(default_factory=Exits)
    """When the search ends before n rollouts, besides the policy."""

    def granularity(self, state: MctsState, node: NodeId) -> Granularity:
        tokens, steps = self.max_step_tokens, self.max_steps
        return bound_step(state, node, max_step_tokens=tokens, max_steps=steps)

    def ends_path(self, state: MctsState, node: NodeId) -> bool:
        return ends_path(state, node, max_steps=self.max_steps)

    def run(self, state: MctsState, commands: Iterable[Command] = ()) -> Move:
        """Go on until the search has to wait for a result. `commands` come first."""
        done = list(commands)
        while (move := self._step(state)) is not None:
            state, new = move
            done += new
        return state, tuple(done)

    def change_allowance(self, state: MctsState, rollouts: int) -> Move:
        """See `Allowance`. Raises ValueError, changing nothing, for less than one rollout."""
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

    # ------------------------------------------------------------ inner

    def _step(self, state: MctsState) -> Move | None:
        """Do the next thing. None if there is nothing to do before a result arrives."""
        if not state.is_searching:
            return None
        if state.phase is Phase.GENERATE and (move := self._launch(state)) is not None:
            return move
        done = len(state.changes)
        if done < len(self.script) and self.script[done][0] == state.turn:
            return self.change_allowance(state, self.script[done][1])
        if state.phase is not Phase.GENERATE:
            return None
        if (ready := self._find_turn(state)) is not None:
            return self._take(state, ready)
        return None if state.flights else self._end(state)

    def _launch(self, state: MctsState) -> Move | None:
        """Let a rollout go on whose node was expanded meanwhile, or launch one. None if there is
        none."""
        expanding = state.expanding
        for flight in state.flights:
            if flight.stage is Stage.WAITING and flight.node not in expanding:
                return self._place(self._land(state, flight), flight)
        if not self._may_launch(state):
            return None
        number = state.num_launched
        flight = Flight(number=number, node=ROOT, stage=Stage.WAITING, reward=1.0)
        return self._place(replace(state, num_launched=number + 1), flight)

    def _may_launch(self, state: MctsState) -> bool:
        room = min(state.allowance, self.n - self._count_done(state))
        return len(state.flights) < room and not state.statistics[ROOT].is_closed

    def _count_done(self, state: MctsState) -> int:
        return len(state.rollouts) + state.num_futile

    def _find_turn(self, state: MctsState) -> Flight | None:
        """The rollout whose expansion is to be taken now."""
        expanders = [f for f in state.flights if f.stage is not Stage.WAITING]
        turns = expanders[:1] if self.take == LAUNCH else expanders
        return next((f for f in turns if f.stage is Stage.READY), None)

    def _take(self, state: MctsState, flight: Flight) -> Move:
        """Take the results of an expansion: its rollout goes on or ends."""
        state, best = settle_expansion(
            state,
            flight.node,
            ends_path=lambda node: self.ends_path(state, node),
            path_score=lambda node: self.path_score(state, node),
            prior=self.prior,
        )
        state = self.exits.count_leaves(self._land(state, flight), flight.node)
        state, commands = self._cut(state)
        if state.tree[best].status is NodeStatus.COMPLETE:
            state, others = self._end_rollout(state, best)
            return state, (*commands, *others)
        if self.exits.is_cut(state, best):
            state = replace(state, num_futile=state.num_futile + 1)
        if (end := self._exit(state)) is not None:
            state, others = end
        elif self.exits.is_cut(state, best):
            others = ()
        else:
            state, others = self._expand(state, replace(flight, node=best))
        return state, (*commands, *others)

    def _end_rollout(self, state: MctsState, leaf: NodeId) -> Move:
        """Note a rollout that ended in `leaf`, which no other one enters again. It is not in
        flight any more."""
        path, reward = list_path(state.tree, leaf), state.statistics[leaf].reward
        statistics = close_node(state.tree, state.statistics.visit(path, reward), leaf)
        state = replace(state, statistics=statistics, rollouts=(*state.rollouts, leaf))
        if (end := self._exit(state)) is not None:
            return end
        if self._count_done(state) < self.n:
            if self.is_policy_due(state):
                return self.check(state)
            state = self.remember_checkpoint(state)
        return state, ()

    def _exit(self, state: MctsState) -> Move | None:
        """End the search if its budget or an exit says so, unless it is at its end anyway."""
        if self._count_done(state) == self.n:
            return None
        if state.is_over_budget:
            return self.vote(state, cut_by=BUDGET)
        reason = self.exits.find_reason(state)
        if reason is None:
            return None
        return self.vote(replace(state, gave_up=reason == FUTILITY), cut_by=reason)

    def _end(self, state: MctsState) -> Move:
        """Nothing is in flight and nothing may be launched."""
        tree = state.tree
        unopened = [
            n.id
            for n in tree.nodes.values()
            if n.status is NodeStatus.ACTIVE and not tree.children(n.id)
        ]
        state = replace(state, tree=tree.mark(dict.fromkeys(unopened, NodeStatus.PRUNED)))
        if self._count_done(state) == self.n or not state.has_cut_leaves:
            return self.vote(state)
        gave_up = state.best_reward < self.exits.futile
        return self.vote(replace(state, gave_up=gave_up), cut_by=FUTILITY)

    # ------------------------------------------------------------ rollouts in flight

    def _place(self, state: MctsState, flight: Flight) -> Move:
        """Let a rollout that is not in flight go on from its node. It is dropped if no leaf is
        open."""
        state, leaf = self._find_leaf(state, flight.node)
        if leaf is None:
            return state, ()
        flight = replace(flight, node=leaf)
        if leaf in state.expanding:
            waiting = replace(flight, stage=Stage.WAITING)
            return self._fly(replace(state, num_waits=state.num_waits + 1), waiting), ()
        if state.tree[leaf].status is NodeStatus.COMPLETE:
            return self._end_rollout(state, leaf)
        return self._expand(state, flight)

    def _find_leaf(self, state: MctsState, start: NodeId) -> tuple[MctsState, NodeId | None]:
        """Find an open leaf below `start`, or else anywhere. Futile ones are closed if they cut
        rollouts."""
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
        """Begin to expand the node of a rollout that is not in flight."""
        parent = flight.node
        tree, nodes = state.tree.expand(parent, self.branching)
        statistics = state.statistics.add(self.branching)
        state = self._fly(
            replace(state, tree=tree, statistics=statistics),
            replace(flight, stage=Stage.GENERATING, outstanding=self.branching),
        )
        children = tuple(Child(node=n.id, seed=n.seed) for n in nodes)
        bound = self.granularity(state, parent)
        return state, (Expand(parent=parent, children=children, granularity=bound),)

    def _fly(self, state: MctsState, flight: Flight) -> MctsState:
        """Put a rollout into flight, behind those that are."""
        reward = state.statistics[flight.node].reward
        return replace(
            state,
            statistics=state.statistics.enter(list_path(state.tree, flight.node)),
            flights=(*state.flights, replace(flight, reward=reward)),
        )

    def _land(self, state: MctsState, flight: Flight) -> MctsState:
        """Take a rollout out of flight."""
        return replace(
            state,
            statistics=state.statistics.leave(list_path(state.tree, flight.node)),
            flights=tuple(f for f in state.flights if f.number != flight.number),
        )

    def _cut(self, state: MctsState) -> Move:
        """Cancel the rollouts in flight that have become futile."""
        cut = self.exits.list_cut(state)
        if not cut:
            return state, ()
        state = replace(state, num_futile=state.num_futile + len(cut))
        return cancel_flights(state, cut)
