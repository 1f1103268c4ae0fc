"""Arrivals, observations, ends, waiting and shrinking capacity in any order: the rollouts in flight
never exceed the budget, every run has one while that allows it, and none starves."""

from dataclasses import replace
from math import e

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from flashedge.scheduling.rollouts.allocation import Allocator, RolloutCandidate
from tests.support.rollout_rig import make_candidate

ALLOCATORS = st.builds(Allocator, least_observed=st.sampled_from((1, 3)), slack=st.integers(0, 2))


class RolloutMachine(RuleBasedStateMachine):
    @initialize(allocator=ALLOCATORS, budget=st.integers(1, 20))
    def start(self, allocator: Allocator, budget: int) -> None:
        self.allocator = allocator
        self.runs: dict[str, RolloutCandidate] = {}
        self.budget, self.now_s, self.count = budget, 0.0, 0
        self.in_flight: dict[str, int] = {}
        self.planned_s = 0.0

    def teardown(self) -> None:
        """Whatever happened: with one rollout at a time alone, every run comes to its end."""
        if not hasattr(self, "runs"):
            return
        self.budget = 1
        steps, work = 0, sum(run.most for run in self.runs.values())
        while self.runs:
            self.wait(1.0)
            self.plan()
            assert any(self.in_flight.values()), "nothing runs, and runs are left"
            for key in [key for key, rollouts in self.in_flight.items() if rollouts]:
                self.end_rollout(key, 0.5)
            steps += 1
            assert steps <= work

    # ------------------------------------------------------------ what happens

    @rule(n=st.integers(1, 12))
    def arrive(self, n: int) -> None:
        key = f"run-{self.count}"
        self.count += 1
        self.in_flight[key] = 0
        self.runs[key] = make_candidate(key, arrived_s=self.now_s, most=n, observed=0)
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
        before = sum(self.in_flight.values())
        self.planned_s = self.now_s
        runs, granted = list(self.runs.values()), dict(self.in_flight)
        for key, rollouts in self.allocator.plan(runs, granted, self.budget, self.now_s).items():
            self.in_flight[key] = rollouts
            assert sum(self.in_flight.values()) <= max(self.budget, before)

    @precondition(lambda self: any(self.in_flight.values()))
    @rule(data=st.data(), nearness=st.floats(0, 1.2))
    def observe(self, data: st.DataObject, nearness: float) -> None:
        busy = sorted(key for key, rollouts in self.in_flight.items() if rollouts)
        self.end_rollout(data.draw(st.sampled_from(busy)), nearness)
        self.plan()

    @precondition(lambda self: self.runs)
    @rule(data=st.data())
    def cancel_run(self, data: st.DataObject) -> None:
        self.end_run(data.draw(st.sampled_from(sorted(self.runs))))
        self.plan()

    # ------------------------------------------------------------ what holds

    @invariant()
    def the_budget_holds(self) -> None:
        granted, runs = self.in_flight, self.runs.values()
        assert sum(granted.values()) <= self.budget
        assert sum(rollouts >= 1 for rollouts in granted.values()) == min(self.budget, len(runs))
        for run in runs:
            assert granted[run.key] <= max(1, run.most)
            assert granted[run.key] <= 1 or self.allocator.find_most(run) > 1

    @invariant()
    def only_who_is_near_its_end_passes_an_older_run(self) -> None:
        granted = self.in_flight
        for old in self.runs.values():
            for other in self.runs.values():
                if granted[old.key] or not granted[other.key]:
                    continue
                is_near = (other.nearness or 0.0) > self.allocator.near
                assert other.arrived_s <= old.arrived_s or is_near
                limit = e**self.allocator.beta * (1 + self.planned_s - other.arrived_s)
                assert 1 + self.planned_s - old.arrived_s <= limit * 1.0001

    # ------------------------------------------------------------ the rig

    def end_rollout(self, key: str, nearness: float) -> None:
        run = self.runs[key]
        if run.most == 1:
            self.end_run(key)
            return
        counts = {"observed": run.observed + 1, "most": run.most - 1}
        self.runs[key] = replace(run, **counts, nearness=nearness)

    def end_run(self, key: str) -> None:
        del self.runs[key], self.in_flight[key]


TestRolloutMachine = RolloutMachine.TestCase
TestRolloutMachine.settings = settings(max_examples=1000, stateful_step_count=25, deadline=None)
