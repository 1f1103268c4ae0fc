"""When rollouts may be added, and how they are divided among runs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from math import e
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flashedge.scheduling.rollouts.allocation import Allocator, RolloutCandidate
from flashedge.scheduling.rollouts.limiter import Limit, RolloutCost, RolloutLimiter
from tests.support.rollout_rig import LinearCurve, make_candidate, make_cost, make_load

FLAT = make_cost(0.0)


def limit(
    runs: list[RolloutCandidate],
    cost: RolloutCost | None = FLAT,
    *,
    margin: float = 0.1,
    **load: Any,
) -> Limit:
    return RolloutLimiter(margin=margin).limit(runs, Allocator(), make_load(**load), cost)


def test_nobody_has_more_while_a_request_finds_no_room_or_nothing_is_measured() -> None:
    found = limit([make_candidate("a"), make_candidate("b")], has_waiting=True)
    assert (found.budget, found.reason) == (2, "requests wait in an engine")
    assert limit([make_candidate("a")], None).budget == 1


def test_a_flat_batch_lets_every_run_have_what_it_can_use() -> None:
    assert limit([make_candidate("a", most=8), make_candidate("b", most=3)]).budget == 11


def test_a_bystander_becomes_slower_by_the_margin_at_most() -> None:
    """A step is 10 ms and 0.1 ms a sequence. Beside 40 others and 4 sequences of one rollout it
    takes 14.4 ms; the margin of a tenth is 14 more sequences, which are 3 rollouts."""
    cost = make_cost(1e-4)
    assert limit([make_candidate("a")], cost, others=40).budget == 1 + 3
    assert limit([make_candidate("a")], cost, others=40, margin=0.05).budget == 2
    assert limit([make_candidate("a")], cost, others=40).reason == "more would slow others down"


def test_the_rollouts_of_runs_that_cannot_grow_count_as_well() -> None:
    """Alone eight rollouts are finished 1.41 times as fast as one. Beside a run with one rollout
    nine are finished 1.18 times as fast as two."""
    cost = make_cost(5e-3)
    assert limit([make_candidate("a")], cost).budget > 1
    beside = [make_candidate("a"), make_candidate("new", observed=0)]
    assert limit(beside, cost).budget == 2


@dataclass(frozen=True)
class CrowdedCurve(LinearCurve):
    """A step takes `crowd_s` longer for each pair of sequences."""

    crowd_s: float = 1e-5

    def decode_at(self, context: float) -> Callable[[int], float]:
        return lambda batch: self.fixed_s + batch**2 * self.crowd_s


@pytest.mark.parametrize("crowd_s", [0.0, 1e-6, 1e-5, 1e-4, 1e-3])
@pytest.mark.parametrize("count", [1, 3, 8])
def test_no_other_number_finishes_more_rollouts(crowd_s: float, count: int) -> None:
    runs = [make_candidate(str(i)) for i in range(count)]
    cost = replace(FLAT, generator=CrowdedCurve(crowd_s=crowd_s))

    def finish(rollouts: int) -> float:
        return rollouts / (0.01 + (4 * rollouts) ** 2 * crowd_s)

    found = limit(runs, cost)
    gains = {m: finish(m) / finish(count) for m in range(count, 8 * count + 1)}
    best = max(gains, key=lambda m: gains[m])
    assert found.budget == (best if gains[best] > RolloutLimiter().least_gain else count)
    if found.budget < 8 * count:
        assert found.reason == "more would gain too little"


def test_a_gain_that_cancelled_rollouts_would_eat_up_does_not_count() -> None:
    """With eight rollouts a step takes 42 instead of 14 ms: 2.67 times as many a second."""
    cost, run = make_cost(1e-3), make_candidate("a")
    for least_gain, budget in ((2.6, 8), (2.7, 1)):
        limiter = RolloutLimiter(least_gain=least_gain)
        assert limiter.limit([run], Allocator(), make_load(), cost).budget == budget


def test_a_limit_is_no_reason_where_more_would_gain_too_little_anyway() -> None:
    """A rollout more is finished at best 1.09 times as fast, and the third has no room."""
    short = {"free_kv_tokens": 1200.0, "max_sequences": 12}
    found = limit([make_candidate("a", path_tokens=500)], make_cost(0.05), **short)
    assert (found.budget, found.reason) == (1, "more would gain too little")


def test_a_verifier_on_its_own_device_sets_the_pace_where_it_is_slower() -> None:
    own = replace(make_cost(0.0, pass_s=2.0), shares_device=False)
    assert own.predict_token_s(4)(4, 1) == 2.0 / own.level_tokens
    assert limit([make_candidate("a")], own).budget == 1


def test_passes_of_the_verifier_count_where_it_shares_the_device() -> None:
    run = make_candidate("a", most=16)
    apart, shared = make_cost(0.0), make_cost(0.0, pass_s=0.2)
    assert limit([run], shared, others=8).budget < limit([run], apart, others=8).budget


def test_the_daemon_counts_like_a_third_engine() -> None:
    """A step takes 10 ms, and the daemon 1 ms for each of its tokens."""
    apart = replace(FLAT, daemon_s=1e-3)
    shared = replace(apart, shares_daemon=True)
    assert [apart.predict_token_s(4)(4 * m, m) for m in (1, 4)] == pytest.approx([0.010, 0.016])
    assert [shared.predict_token_s(4)(4 * m, m) for m in (1, 4)] == pytest.approx([0.014, 0.026])
    assert limit([make_candidate("a")], FLAT, others=16).budget == 8
    assert limit([make_candidate("a")], shared, others=16).reason == "more would slow others down"
    crowd = [make_candidate(str(i)) for i in range(8)]
    assert limit(crowd, FLAT).budget == 64
    assert limit(crowd, apart).budget == 8


def test_the_free_memory_and_the_batch_are_limits() -> None:
    run = make_candidate("a", path_tokens=500)
    short = limit([run], free_kv_tokens=1200.0)
    assert (short.budget, short.reason) == (1 + 2, "the KV memory is full")
    small = limit([run], max_sequences=12)
    assert (small.budget, small.reason) == (3, "the batch is full")


def test_only_what_may_grow_makes_the_batch_larger() -> None:
    """Seven new runs of 2 sequences, and one of 16 that may have eight rollouts: 14 + 16 m."""
    runs = [make_candidate(str(i), branching=2, observed=0) for i in range(7)]
    runs.append(make_candidate("large", branching=16))
    found = limit(runs, max_sequences=14 + 16 * 4)
    assert (found.budget, found.reason) == (7 + 4, "the batch is full")


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
    scores = {"a": 1, "b": 2, "c": 3}
    runs = [make_candidate(key, arrived_s=1 - e**s, most=12) for key, s in scores.items()]
    found = Allocator(beta=0.0).divide(runs, 13, 0.0)
    # ⌊13/6⌋, ⌊26/6⌋, ⌊39/6⌋, and the one that is left goes to the highest score
    assert found == {"c": 7, "b": 4, "a": 2}


@pytest.mark.parametrize(("nearness", "is_first"), [(0.95, True), (0.9, False)])
def test_a_run_near_its_end_goes_before_an_older_one(nearness: float, is_first: bool) -> None:
    old = make_candidate("old", arrived_s=50.0)
    near = make_candidate("near", arrived_s=80.0, nearness=nearness)
    found = Allocator().divide([old, near], 6, 100.0)
    assert (found["near"] > found["old"]) is is_first


def test_a_run_without_an_observation_is_serial() -> None:
    new, old = make_candidate("new", observed=0, arrived_s=-1000.0), make_candidate("old")
    assert Allocator().divide([new, old], 8, 10.0) == {"new": 1, "old": 7}
