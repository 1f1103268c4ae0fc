"""Parallel rollouts under random schedules: results in any order, allowances, exits, and a stop at
any time."""

from collections import Counter, defaultdict
from dataclasses import dataclass, field
from random import Random
from typing import Any

import pytest

from flashedge.search import base
from flashedge.search.base import Cancel, Command, Finish, Result
from flashedge.search.mcts.exits import Exits
from flashedge.search.mcts.rollouts import Allowance, MctsState, Stage, list_path
from flashedge.search.strategies.mcts import Mcts
from flashedge.search.tree import ROOT, NodeStatus
from flashedge.types import Limits, NodeId
from tests.properties.test_mcts_twin import count_closed, draw_limits, draw_search
from tests.support.search_rig import LIMITS, PROBLEM, World

ALLOWANCES = (1, 2, 3, 5, 8)
NEW = (NodeStatus.GENERATING, NodeStatus.GENERATED)


@dataclass
class Schedule:
    """One search from start to end. After every move it counts what the search keeps, and follows
    which requests a driver would have open."""

    search: Mcts
    world: World
    random: Random
    limits: Limits = LIMITS
    allowances: tuple[int, ...] = ()
    stop_after: int | None = None
    most_in_flight: int = 0
    late: list[Result] = field(default_factory=list)
    """Results of cancelled nodes, which a driver could not stop in time."""

    def play(self) -> MctsState:
        state, commands = self.search.start(PROBLEM, 5, self.limits)
        pending: list[Result] = []
        told, stopped = 0, self.stop_after is not None
        while True:
            pending = self._follow(state, commands, pending)
            self._check(state, pending)
            if finish := next((c for c in commands if isinstance(c, Finish)), None):
                self._check_end(state, pending)
                if finish.cut_by is None and not stopped and not self.search.exits.positive_exit:
                    ended = len(state.rollouts) + state.num_futile
                    assert ended == self.search.n or state.statistics[ROOT].is_closed
                return state
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
        rewards = sorted(flight.reward for flight in flights)
        least = rewards[: max(0, len(flights) - rollouts)]
        state, commands = self.search.tell(state, Allowance(rollouts=rollouts))
        if state.changes and state.num_cancelled > cancelled:
            assert state.num_cancelled - cancelled == len(least)
            stay = {flight.number for flight in state.flights}
            gone = sorted(flight.reward for flight in flights if flight.number not in stay)
            assert gone[: len(least)] == least
        return state, commands

    def _follow(
        self, state: MctsState, commands: tuple[Command, ...], pending: list[Result]
    ) -> list[Result]:
        for command in commands:
            if isinstance(command, Cancel):
                gone = set(command.nodes)
                self.late += [r for r in pending if _node_of(r) in gone]
                pending = [r for r in pending if _node_of(r) not in gone]
            elif isinstance(command, base.Expand | base.Score | base.Cluster):
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
        visits = Counter(node for end in state.rollouts for node in list_path(tree, end))
        values: dict[NodeId, float] = defaultdict(float)
        for end in state.rollouts:
            for node in list_path(tree, end):
                values[node] += self.search.score_path(state, end)
        flying = Counter(node for f in flights for node in list_path(tree, f.node))
        assert len(kept) == len(tree.nodes)
        closed = count_closed(state) if not self.search.exits.cut_rollouts else None
        for node in tree.nodes.values():
            at, expected = kept[node.id], (visits[node.id], flying[node.id], values[node.id])
            assert (at.visits, at.in_flight, at.reward_sum) == expected
            if closed is not None and node.status not in (*NEW, NodeStatus.CANCELLED):
                assert at.is_closed == closed[node.id]

    def _check_end(self, state: MctsState, pending: list[Result]) -> None:
        assert not state.flights
        assert not pending, "a request that nobody waits for"
        assert all(state.statistics[node].in_flight == 0 for node in state.tree.nodes)
        assert not any(node.status in NEW for node in state.tree.nodes.values())
        assert all(state.tree[end].status is NodeStatus.COMPLETE for end in state.rollouts)
        for node in state.tree.nodes.values():
            if node.status is NodeStatus.CANCELLED:
                assert (node.segment, node.scores) == (None, None)
        for result in self.late:
            assert self.search.tell(state, result) == (state, ())


def list_open(state: MctsState) -> list[NodeId]:
    def is_open(stage: Stage, node: NodeId) -> bool:
        at = state.tree[node]
        if stage is Stage.GENERATING:
            return at.status is NodeStatus.GENERATING
        return stage is Stage.SCORING and at.scores is None

    flights = [(f.stage, state.list_new_children(f.node)) for f in state.flights]
    return [node for stage, nodes in flights for node in nodes if is_open(stage, node)]


def _node_of(result: Result) -> NodeId | None:
    return result.node if isinstance(result, base.Generated | base.Scored) else None


def draw_parallel(random: Random) -> dict[str, Any]:
    fields = draw_search(random)
    exits = Exits()
    if fields["aggregate"] in ("prod", "min") and random.random() < 0.5:
        exits = Exits(
            positive_exit=random.random() < 0.3,
            accept=random.random(),
            negative_exit=random.random() < 0.5,
            cut_rollouts=random.random() < 0.5,
            futile=random.choice([0.01, 0.05, 0.2]),
        )
    return {**fields, "parallel": random.randint(1, 8), "exits": exits}


@pytest.mark.parametrize("block", range(10))
def test_no_schedule_leaks_or_exceeds_its_allowance(block: int) -> None:
    seen: Counter[str] = Counter()
    for seed in range(100 * block, 100 * block + 100):
        random = Random(seed)
        schedule = Schedule(
            search=Mcts(**draw_parallel(random), take=random.choice(["launch", "arrival"])),
            world=World(seed),
            random=random,
            limits=draw_limits(random),
            allowances=random.choice([(), ALLOWANCES]),
            stop_after=random.choice([None, None, None, random.randint(0, 60)]),
        )
        state = schedule.play()
        seen["cancelled"] += state.num_cancelled
        seen["late"] += len(schedule.late)
        seen["waits"] += state.num_waits
        seen["full"] += schedule.most_in_flight >= 4
    assert all(seen[name] > 0 for name in ("cancelled", "late", "waits", "full")), seen


@pytest.mark.parametrize("block", range(4))
def test_seed_and_p_fix_the_tree_whatever_arrives_first(block: int) -> None:
    changed = 0
    for seed in range(50 * block, 50 * block + 50):
        random = Random(seed)
        fields, limits = draw_parallel(random), draw_limits(random)

        def play(order: int, allowances: tuple[int, ...] = (), **more: Any) -> MctsState:
            search, world = Mcts(**fields, **more), World(seed)  # noqa: B023
            return Schedule(search, world, Random(order), limits, allowances).play()  # noqa: B023

        assert play(1) == play(2)
        first = play(3, ALLOWANCES)
        assert play(4, script=first.changes) == first
        changed += len(first.changes)
    assert changed > 50


def test_results_taken_by_arrival_depend_on_the_order() -> None:
    search = Mcts(n=12, branching=3, max_step_tokens=5, max_steps=5, parallel=4, take="arrival")
    trees = [Schedule(search, World(3), Random(order)).play().tree for order in range(6)]
    assert any(tree != trees[0] for tree in trees)
