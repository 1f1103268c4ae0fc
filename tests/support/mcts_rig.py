"""Drives MCTS through a random schedule: results in any order, allowances, a stop at any time.
After every move it counts what the search keeps, and follows which requests a driver would have
open."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from random import Random
from typing import Any

from flashedge.search.base import (
    Cancel,
    Cluster,
    Command,
    Expand,
    Finish,
    Generated,
    Result,
    Score,
    Scored,
)
from flashedge.search.mcts.rollouts import Allowance, MctsState, Stage, list_path
from flashedge.search.strategies.mcts import Mcts
from flashedge.search.tree import NodeStatus
from flashedge.types import Limits, NodeId
from tests.support.search_rig import LIMITS, PROBLEM, World

NEW = (NodeStatus.GENERATING, NodeStatus.GENERATED)


@dataclass
class Schedule:
    search: Mcts
    world: World
    random: Random
    limits: Limits = LIMITS
    allowances: tuple[int, ...] = ()
    stop_after: int | None = None
    most_in_flight: int = 0
    late: list[Result] = field(default_factory=list)
    """Results of cancelled nodes, which a driver could not stop in time."""
    commands: list[Command] = field(default_factory=list)

    def play(self) -> tuple[MctsState, Finish]:
        state, commands = self.search.start(PROBLEM, 5, self.limits)
        pending: list[Result] = []
        told = 0
        while True:
            self.commands += commands
            pending = self._follow(state, commands, pending)
            self._check(state, pending)
            finishes = [c for c in commands if isinstance(c, Finish)]
            if finishes:
                self._check_end(state, pending)
                return state, finishes[0]
            if self.late and self.random.random() < 0.2:
                late = self.late.pop(self.random.randrange(len(self.late)))
                assert self.search.tell(state, late) == (state, ())
            if self.stop_after is not None and told >= self.stop_after:
                self.stop_after = None
                pending = []
                state, commands = self.search.conclude(state)
            elif self.allowances and self.random.random() < 0.15:
                state, commands = self._allow(state, self.random.choice(self.allowances))
            else:
                assert pending, "the search waits for nothing"
                told += 1
                result = pending.pop(self.random.randrange(len(pending)))
                state, commands = self.search.tell(state, result)

    def _allow(self, state: MctsState, rollouts: int) -> tuple[MctsState, tuple[Command, ...]]:
        flights, cancelled = state.flights, state.num_cancelled
        least = sorted(flights, key=lambda flight: flight.reward)[: max(0, len(flights) - rollouts)]
        state, commands = self.search.tell(state, Allowance(rollouts=rollouts))
        if state.changes and state.num_cancelled > cancelled:
            assert state.num_cancelled - cancelled == len(least)
            stay = {flight.number for flight in state.flights}
            gone = [flight.reward for flight in flights if flight.number not in stay]
            assert sorted(gone)[: len(least)] == [flight.reward for flight in least]
        return state, commands

    def _follow(
        self, state: MctsState, commands: tuple[Command, ...], pending: list[Result]
    ) -> list[Result]:
        for command in commands:
            if isinstance(command, Cancel):
                gone = set(command.nodes)
                self.late += [r for r in pending if _node_of(r) in gone]
                pending = [r for r in pending if _node_of(r) not in gone]
            elif isinstance(command, Expand | Score | Cluster):
                pending = pending + self.world.results(state.tree, (command,))
        return pending

    def _check(self, state: MctsState, pending: list[Result]) -> None:
        flights, tree, kept = state.flights, state.tree, state.statistics
        self.most_in_flight = max(self.most_in_flight, len(flights))
        assert len(flights) <= state.allowance
        assert len({flight.number for flight in flights}) == len(flights)
        assert len(flights) + len(state.rollouts) + state.num_futile <= self.search.n
        expanders = [f.node for f in flights if f.stage is not Stage.WAITING]
        assert len(set(expanders)) == len(expanders), "no node is expanded twice at once"
        if state.is_searching:
            assert {_node_of(r) for r in pending} - {None} == set(list_open(state))
        visits: Counter[NodeId] = Counter()
        values: Counter[NodeId] = Counter()
        for end in state.rollouts:
            for node in list_path(tree, end):
                visits[node] += 1
                values[node] += self.search.path_score(state, end)  # type: ignore[assignment]
        flying = Counter(node for f in flights for node in list_path(tree, f.node))
        assert len(kept) == len(tree.nodes)
        closed = count_closed(state) if not self.search.exits.cut_rollouts else None
        for node in tree.nodes.values():
            at = kept[node.id]
            assert (at.visits, at.in_flight) == (visits[node.id], flying[node.id])
            assert at.value == values[node.id]
            if closed is not None and node.status not in (*NEW, NodeStatus.CANCELLED):
                assert at.is_closed == closed[node.id]

    def _check_end(self, state: MctsState, pending: list[Result]) -> None:
        assert not state.flights
        assert not pending, "a request that nobody waits for"
        assert all(state.statistics[node].in_flight == 0 for node in state.tree.nodes)
        assert not any(node.status in NEW for node in state.tree.nodes.values())
        for node in state.tree.nodes.values():
            if node.status is NodeStatus.CANCELLED:
                assert node.segment is None
                assert node.scores is None
        for result in self.late:
            assert self.search.tell(state, result) == (state, ())


def list_open(state: MctsState) -> list[NodeId]:
    found = []
    for flight in state.flights:
        for node in state.list_new_children(flight.node):
            at = state.tree[node]
            if flight.stage is Stage.GENERATING and at.status is NodeStatus.GENERATING:
                found.append(node)
            if flight.stage is Stage.SCORING and at.scores is None:
                found.append(node)
    return found


def count_closed(state: Any) -> dict[NodeId, bool]:
    """Which nodes lead to no leaf that a rollout can still reach: the naive twin."""
    tree, ended = state.tree, set(state.rollouts)
    closed: dict[NodeId, bool] = {}
    for node in reversed(tuple(tree.nodes.values())):
        children = tree.list_kept(node.id)
        if node.status is NodeStatus.DUPLICATE:
            closed[node.id] = True
        elif node.status is NodeStatus.COMPLETE:
            closed[node.id] = node.id in ended
        elif children:
            closed[node.id] = all(closed[child.id] for child in children)
        else:
            closed[node.id] = False
    return closed


def _node_of(result: Result) -> NodeId | None:
    return result.node if isinstance(result, Generated | Scored) else None
