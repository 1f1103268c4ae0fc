"""Arrivals, observations, ends, waiting and shrinking capacity in any order: the rollouts in flight
never exceed the budget, every run has one while that allows it, and none starves."""

from __future__ import annotations

from math import e

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from flashedge.scheduling.rollouts.allocation import Allocator, ByScore, Fixed
from flashedge.scheduling.rollouts.board import RolloutBoard
from flashedge.scheduling.rollouts.score import DopScore
from tests.support.rollout_rig import make_contender

SCORE = DopScore()
ALLOCATORS = (ByScore(score=SCORE), ByScore(score=SCORE, least_observed=3), Fixed(each=3))


class RolloutMachine(RuleBasedStateMachine):
    """The board, and runs that do as it says."""

    @initialize(
        allocator=st.sampled_from(ALLOCATORS), budget=st.integers(1, 20), slack=st.integers(0, 2)
    )
    def start(self, allocator: Allocator, budget: int, slack: int) -> None:
        self.board = RolloutBoard(allocator, slack)
        self.budget, self.now_s, self.count = budget, 0.0, 0
        self.in_flight: dict[str, int] = {}
        self.left: dict[str, int] = {}
        self.planned_s = 0.0

    def teardown(self) -> None:
        """Whatever happened: with one rollout at a time alone, every run comes to its end."""
        if not hasattr(self, "board"):
            return
        self.budget = 1
        steps, work = 0, sum(self.left.values())
        while self.left:
            self.wait(1.0)
            self.plan()
            assert any(self.in_flight.values()), "nothing runs, and runs are left"
            for key in [key for key, rollouts in self.in_flight.items() if rollouts]:
                self.end_rollout(key, 0.5)
            steps += 1
            assert steps <= work
        assert not self.board.granted

    # ------------------------------------------------------------ what happens

    @rule(n=st.integers(1, 12))
    def arrive(self, n: int) -> None:
        key = f"run-{self.count}"
        self.count += 1
        self.left[key], self.in_flight[key] = n, 0
        self.board.add(make_contender(key, arrived_s=self.now_s, most=n, observed=0))
        self.plan()

    @rule(budget=st.integers(0, 20))
    def change_capacity(self, budget: int) -> None:
        self.budget = budget
        self.plan()

    @rule(seconds=st.floats(0.01, 60.0))
    def wait(self, seconds: float) -> None:
        self.now_s += seconds

    @rule()
    def plan(self) -> None:
        """Tell the runs what changes, one after the other."""
        before = sum(self.in_flight.values())
        self.planned_s = self.now_s
        for move in self.board.plan(self.budget, self.now_s):
            self.in_flight[move.key] = move.rollouts
            assert sum(self.in_flight.values()) <= max(self.budget, before)

    @precondition(lambda self: any(self.in_flight.values()))
    @rule(data=st.data(), nearness=st.floats(0, 1.2))
    def observe(self, data: st.DataObject, nearness: float) -> None:
        busy = sorted(key for key, rollouts in self.in_flight.items() if rollouts)
        self.end_rollout(data.draw(st.sampled_from(busy)), nearness)
        self.plan()

    @precondition(lambda self: self.left)
    @rule(data=st.data())
    def cancel_run(self, data: st.DataObject) -> None:
        self.end_run(data.draw(st.sampled_from(sorted(self.left))))
        self.plan()

    # ------------------------------------------------------------ what holds

    @invariant()
    def the_budget_holds(self) -> None:
        if not hasattr(self, "board"):
            return
        granted = self.board.granted
        assert granted == self.in_flight
        assert sum(granted.values()) <= self.budget
        runs = self.board.runs
        assert sum(rollouts >= 1 for rollouts in granted.values()) == min(self.budget, len(runs))
        for run in runs:
            assert granted[run.key] <= max(1, run.most)
            assert granted[run.key] <= 1 or self.board.allocator.find_most(run) > 1

    @invariant()
    def only_who_is_near_its_end_passes_an_older_run(self) -> None:
        """And nobody passes one that is e^β times as old, so each has its turn."""
        if not hasattr(self, "board") or not isinstance(self.board.allocator, ByScore):
            return
        granted = self.board.granted
        for old in self.board.runs:
            for other in self.board.runs:
                if granted[old.key] or not granted[other.key]:
                    continue
                assert other.arrived_s <= old.arrived_s or (other.nearness or 0.0) > SCORE.near
                limit = e**SCORE.beta * (1 + self.planned_s - other.arrived_s)
                assert 1 + self.planned_s - old.arrived_s <= limit * 1.0001

    # ------------------------------------------------------------ the rig

    def end_rollout(self, key: str, nearness: float) -> None:
        self.left[key] -= 1
        if not self.left[key]:
            self.end_run(key)
            return
        run = next(run for run in self.board.runs if run.key == key)
        self.board.update(key, observed=run.observed + 1, most=self.left[key], nearness=nearness)

    def end_run(self, key: str) -> None:
        del self.left[key], self.in_flight[key]
        self.board.remove(key)


TestRolloutMachine = RolloutMachine.TestCase
TestRolloutMachine.settings = settings(max_examples=1000, stateful_step_count=25, deadline=None)
