"""How rollouts are divided among runs."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from flashedge.scheduling.rollouts.allocation import Allocator, RolloutCandidate
from tests.support.rollout_rig import make_candidate

RUNS = st.lists(
    st.builds(
        make_candidate,
        key=st.uuids().map(str),
        arrived_s=st.floats(0, 100),
        most=st.integers(1, 16),
        observed=st.integers(0, 3),
        nearness=st.none() | st.floats(0, 1),
    ),
    max_size=10,
)
ALLOCATORS = st.sampled_from((Allocator(), Allocator(beta=0.0, least_observed=3)))


@given(runs=RUNS, budget=st.integers(0, 60), allocator=ALLOCATORS)
def test_the_budget_holds_and_everybody_has_one_while_it_allows(
    runs: list[RolloutCandidate], budget: int, allocator: Allocator
) -> None:
    found = allocator.divide(runs, budget, 100.0)
    assert set(found) == {run.key for run in runs}
    assert sum(found.values()) <= budget
    assert sum(rollouts >= 1 for rollouts in found.values()) == min(budget, len(runs))
    for run in runs:
        assert found[run.key] <= run.most
        assert found[run.key] <= 1 or allocator.find_most(run) > 1


@given(runs=RUNS, budget=st.integers(10, 60))
def test_nothing_is_left_that_a_run_could_use(runs: list[RolloutCandidate], budget: int) -> None:
    allocator = Allocator()
    found = allocator.divide(runs, budget, 100.0)
    if sum(found.values()) < budget:
        assert all(found[r.key] == r.most for r in runs if allocator.find_most(r) > 1)


def test_shares_follow_the_scores() -> None:
    """S = 1, 2 and 3 of 6: a budget of 13 is divided into 2, 4 and 7."""
    runs = [
        make_candidate(name, arrived_s=-(2.718281828459045**s - 1), most=12)
        for name, s in (("a", 1), ("b", 2), ("c", 3))
    ]
    found = Allocator(beta=0.0).divide(runs, 13, 0.0)
    # ⌊13/6⌋, ⌊26/6⌋, ⌊39/6⌋, and the one that is left goes to the highest score
    assert found == {"c": 7, "b": 4, "a": 2}


def test_as_printed_the_sum_would_exceed_the_budget() -> None:
    """Nine new runs have one rollout each by max(1, ·), and the old one its share of ten."""
    young = [make_candidate(f"young-{i}", arrived_s=99.9) for i in range(9)]
    runs = [make_candidate("old"), *young]
    scores = [Allocator().rate(run, 100.0) for run in runs]
    assert sum(max(1, int(s / sum(scores) * 10)) for s in scores) > 10
    assert set(Allocator().divide(runs, 10, 100.0).values()) == {1}


def test_a_run_near_its_end_goes_before_an_older_one() -> None:
    old = make_candidate("old", arrived_s=50.0)
    near = make_candidate("near", arrived_s=80.0, nearness=0.95)
    found = Allocator().divide([old, near], 6, 100.0)
    assert found["near"] > found["old"]
    far = make_candidate("near", arrived_s=80.0, nearness=0.9)
    found = Allocator().divide([old, far], 6, 100.0)
    assert found["near"] <= found["old"]


def test_a_run_without_an_observation_is_serial() -> None:
    new, old = make_candidate("new", observed=0, arrived_s=-1000.0), make_candidate("old")
    assert Allocator().divide([new, old], 8, 10.0) == {"new": 1, "old": 7}
