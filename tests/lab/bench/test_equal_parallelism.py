"""The study of equal parallelism: the paper's beam, and that one M bounds every variant."""

from dataclasses import replace
from pathlib import Path

import pytest

from flashedge.files.journal import Journal
from flashedge.runtime.drive.driver import Driver, Outcome
from flashedge.runtime.request.validation import Request
from flashedge.scheduling.costs import RooflineCurve
from flashedge.scheduling.rollouts.allocation import Allocator, RolloutCandidate
from flashedge.scheduling.rollouts.limiter import IDLE, RolloutCost, RolloutLimiter
from flashedge.search.mcts.exits import REWARD
from flashedge.search.tree import ROOT, NodeStatus
from scripts.bench.mcts import load
from scripts.bench.mcts.equal_parallelism import SimulatedLoad, Study, Task, list_trials
from scripts.bench.mcts.paper_beam import KEPT, build_paper_beam
from scripts.bench.mcts.places import build_place
from scripts.bench.mcts.recorded_tree import load_problems
from scripts.bench.smoke import SMALL
from tests.support.search_rig import PROBLEM, drive
from tests.unit.search.test_mcts_exits import Indices, Planned

SPEC = Request(problem=PROBLEM, pair="bundled", strategy="beam", branching=4)
PLACE, BOUND = "7B on two cards a model", 10
RUN = RolloutCandidate(key="a", arrived_s=0.0, branching=4, most=16, observed=1)


def score(path: Indices) -> float:
    """The higher the last index, the better."""
    return 0.5 + 0.1 * min(path[-1], 3)


def test_the_papers_beam_keeps_eight_and_draws_four_of_each() -> None:
    found = drive(build_paper_beam(SPEC), world=Planned(score=score))
    tree = found.states[-1].tree
    first = tree.children(ROOT)
    kept = [node for node in first if tree.children(node.id)]
    assert (len(first), len(kept)) == (KEPT * 4, KEPT)
    assert all(len(tree.children(node.id)) == 4 for node in kept)
    assert found.end.cut_by is None


def test_the_papers_beam_ends_with_a_good_path() -> None:
    found = drive(build_paper_beam(SPEC, accept=0.5), world=Planned(score=score))
    best = found.states[-1].tree[found.end.choice]
    assert (found.end.cut_by, best.status) == (REWARD, NodeStatus.COMPLETE)


def test_constant_rollouts_keep_to_the_bound() -> None:
    for bound in (8, 32):
        for name, trial in list_trials(bound).items():
            each = trial.variant.options.get("parallel", 1)
            if trial.variant.strategy == "mcts":
                assert trial.jobs * each <= bound, name


class Counts:
    """Rollouts that all running searches may have, and running searches."""

    def __init__(self) -> None:
        self.granted: dict[Driver, int] = {}
        self.running: set[Driver] = set()
        self.most_granted = self.most_running = self.most_of_one = 0

    def note(self) -> None:
        self.most_of_one = max(self.most_of_one, *self.granted.values())
        self.most_granted = max(self.most_granted, sum(self.granted.values()))
        self.most_running = max(self.most_running, len(self.running))


@pytest.mark.parametrize(
    "name", ["PE+NE+cut", "4 each", "boost", "boost, gate", "boost, one τ", "beam-8"]
)
def test_one_bound_holds_for_searches_and_rollouts_of_a_load(
    name: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    found, trial = Counts(), list_trials(BOUND)[name]
    at_first = trial.variant.options.get("parallel", 1)

    class CountedDriver(Driver):
        def allow(self, rollouts: int, of: int = 0) -> None:
            found.granted[self] = rollouts
            found.note()
            super().allow(rollouts, of)

        async def run(self) -> Outcome:
            found.granted.setdefault(self, at_first)
            found.running.add(self)
            found.note()
            try:
                return await super().run()
            finally:
                del found.granted[self]
                found.running.remove(self)

    monkeypatch.setattr(load, "Driver", CountedDriver)
    problems = load_problems(SMALL / "recorded_trees.jsonl")
    with Journal(
        tmp_path / "loads.jsonl", {}, SimulatedLoad.from_json, lambda one: one.task
    ) as journal:
        Study(problems, BOUND + 3, journal).find(Task(PLACE, BOUND, name, 0.0, 0))
    assert found.most_running == trial.jobs
    assert found.most_granted <= BOUND
    if trial.variant.boost is not None:
        assert found.most_of_one > 1


def test_the_gate_lets_no_more_than_the_bound_through() -> None:
    place = build_place(PLACE)
    cost = RolloutCost(
        generator=RooflineCurve(device=place.device, shape=place.generator),
        verifier=RooflineCurve(device=place.device, shape=place.verifier),
        shares_device=place.is_shared,
    )
    boost = list_trials(32)["boost, gate"].variant.boost
    assert boost is not None
    runs = [replace(RUN, key=str(i)) for i in range(3)]
    free = RolloutLimiter().limit(runs, Allocator(), IDLE, cost).budget
    assert free > 32
    assert boost.limiter.limit(runs, Allocator(), IDLE, cost).budget == 32
