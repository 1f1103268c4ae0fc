"""How rollouts are divided among runs."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from flashedge.scheduling.rollouts.allocation import Allocator, ByScore, Fixed
from flashedge.scheduling.rollouts.contender import Contender
from flashedge.scheduling.rollouts.score import DopScore
from tests.support.rollout_rig import make_contender

RUNS = st.lists(
    st.builds(
        make_contender,
        key=st.uuids().map(str),
        arrived_s=st.floats(0, 100),
        most=st.integers(1, 16),
        observed=st.integers(0, 3),
        nearness=st.none() | st.floats(0, 1),
    ),
    max_size=10,
)
ALLOCATORS = st.sampled_from((ByScore(), Fixed(each=1), Fixed(each=4)))


@given(runs=RUNS, budget=st.integers(0, 60), allocator=ALLOCATORS)
def test_the_budget_holds_and_everybody_has_one_while_it_allows(
    runs: list[Contender], budget: int, allocator: Allocator
) -> None:
    found = allocator.divide(runs, budget, 100.0)
    assert set(found) == {run.key for run in runs}
    assert sum(found.values()) <= budget
    assert sum(rollouts >= 1 for rollouts in found.values()) == min(budget, len(runs))
    for run in runs:
        assert found[run.key] <= run.most
        assert found[run.key] <= 1 or allocator.find_most(run) > 1


@given(runs=RUNS, budget=st.integers(10, 60))
def test_nothing_is_left_that_a_run_could_use(runs: list[Contender], budget: int) -> None:
    allocator = ByScore()
    found = allocator.divide(runs, budget, 100.0)
    if sum(found.values()) < budget:
        assert all(found[r.key] == r.most for r in runs if allocator.find_most(r) > 1)


def test_shares_follow_the_scores() -> None:
    """S = 1, 2 and 3 of 6: a budget of 13 is divided into 2, 4 and 7."""
    score = DopScore(beta=0.0)
    runs = [
        make_contender(name, arrived_s=-(2.718281828459045**s - 1), most=12)
        for name, s in (("a", 1), ("b", 2), ("c", 3))
    ]
    found = ByScore(score=score).divide(runs, 13, 0.0)
    # ⌊13/6⌋, ⌊26/6⌋, ⌊39/6⌋, and the one that is left goes to the highest score
    assert found == {"c": 7, "b": 4, "a": 2}


def test_as_printed_the_sum_would_exceed_the_budget() -> None:
    """Nine new runs have one rollout each by max(1, ·), and the old one its share of ten."""
    young = [make_contender(f"young-{i}", arrived_s=99.9) for i in range(9)]
    runs = [make_contender("old"), *young]
    scores = [DopScore().rate(run, 100.0) for run in runs]
    assert sum(max(1, int(s / sum(scores) * 10)) for s in scores) > 10
    assert set(ByScore().divide(runs, 10, 100.0).values()) == {1}


def test_a_run_near_its_end_goes_before_an_older_one() -> None:
    old = make_contender("old", arrived_s=50.0)
    near = make_contender("near", arrived_s=80.0, nearness=0.95)
    found = ByScore().divide([old, near], 6, 100.0)
    assert found["near"] > found["old"]
    far = make_contender("near", arrived_s=80.0, nearness=0.9)
    found = ByScore().divide([old, far], 6, 100.0)
    assert found["near"] <= found["old"]


def test_a_run_without_an_observation_is_serial() -> None:
    new, old = make_contender("new", observed=0, arrived_s=-1000.0), make_contender("old")
    assert ByScore().divide([new, old], 8, 10.0) == {"new": 1, "old": 7}


def test_the_twin_gives_everybody_the_same() -> None:
    runs = [make_contender("a", nearness=1.0), make_contender("b"), make_contender("c")]
    assert Fixed(each=3).divide(runs, 99, 5.0) == {"a": 3, "b": 3, "c": 3}
    assert Fixed(each=3).divide(runs, 5, 5.0) == {"a": 3, "b": 1, "c": 1}
    assert Fixed().divide(runs, 99, 5.0) == {"a": 1, "b": 1, "c": 1}
