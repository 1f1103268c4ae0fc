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
