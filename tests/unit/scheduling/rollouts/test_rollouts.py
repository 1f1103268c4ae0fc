"""When rollouts may be added, and how they are divided among runs."""

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

Runs = list[RolloutCandidate]


def limit(runs: Runs, cost: RolloutCost | None = FLAT, margin: float = 0.1, **load: Any) -> Limit:
    return RolloutLimiter(margin=margin).limit(runs, Allocator(), make_load(**load), cost)


ONE, LONG = [make_candidate("a")], [make_candidate("a", path_tokens=500)]
TWO, MANY = [*ONE, make_candidate("b", most=3)], [make_candidate("a", most=16)]
CROWD = [make_candidate(str(i)) for i in range(8)]
NEW = [make_candidate(str(i), branching=2, observed=0) for i in range(7)]
NO_MORE, LITTLE = "the runs have a use for no more", "more would gain too little"
SLOW, FULL = "more would slow others down", "the batch is full"
OWN_DEVICE = replace(make_cost(0.0, pass_s=2.0), shares_device=False)
DAEMON = replace(FLAT, daemon_s=1e-3)
SHORT = {"free_kv_tokens": 1200.0, "max_sequences": 12}


@pytest.mark.parametrize(
    ("runs", "cost", "load", "budget", "reason"),
    [
        (TWO, FLAT, {"has_waiting": True}, 2, "requests wait in an engine"),
        (ONE, None, {}, 1, "the speed of the engines is not known"),
        (TWO, FLAT, {}, 8 + 3, NO_MORE),  # a flat batch: all that they can use
        # A step is 10 ms and 0.1 ms a sequence. Beside 40 others and 4 sequences of one rollout it
        # takes 14.4 ms; the margin of a tenth is 14 more sequences, which are 3 rollouts.
        (ONE, make_cost(1e-4), {"others": 40}, 1 + 3, SLOW),
        (ONE, make_cost(1e-4), {"others": 40, "margin": 0.05}, 2, SLOW),
        # Alone eight rollouts are finished 1.41 times as fast as one. Beside a run with one rollout
        # that can't grow nine are finished 1.18 times as fast as two.
        (ONE, make_cost(5e-3), {}, 8, NO_MORE),
        ([*ONE, make_candidate("new", observed=0)], make_cost(5e-3), {}, 2, LITTLE),
        # A rollout more is finished at best 1.09 times as fast, and the third has no room.
        (LONG, make_cost(0.05), SHORT, 1, LITTLE),
        (ONE, OWN_DEVICE, {}, 1, LITTLE),  # the slower verifier sets the pace
        # passes of the verifier count where it shares the device
        (MANY, make_cost(0.0), {"others": 8}, 16, NO_MORE),
        (MANY, make_cost(0.0, pass_s=0.2), {"others": 8}, 1, SLOW),
        # the daemon counts like a third engine
        (ONE, FLAT, {"others": 16}, 8, NO_MORE),
        (ONE, replace(DAEMON, shares_daemon=True), {"others": 16}, 1, SLOW),
        (CROWD, FLAT, {}, 64, NO_MORE),
        (CROWD, DAEMON, {}, 8, LITTLE),
        (LONG, FLAT, {"free_kv_tokens": 1200.0}, 1 + 2, "the KV memory is full"),
        (LONG, FLAT, {"max_sequences": 12}, 3, FULL),
        # seven new runs of 2 sequences, and one of 16 that may have eight rollouts: 14 + 16 m
        ([*NEW, make_candidate("large", branching=16)], FLAT, {"max_sequences": 78}, 7 + 4, FULL),
    ],
)
def test_rollouts_are_added_until_a_limit_and_its_reason(
    runs: Runs, cost: RolloutCost | None, load: dict[str, Any], budget: int, reason: str
) -> None:
    assert limit(runs, cost, **load) == Limit(budget=budget, reason=reason)


def test_the_slower_of_the_engines_and_the_daemon_sets_the_pace() -> None:
    """A step takes 10 ms, and the daemon 1 ms for each of its tokens."""
    assert OWN_DEVICE.predict_token_s(4)(4, 1) == 2.0 / OWN_DEVICE.level_tokens
    shared = replace(DAEMON, shares_daemon=True)
    assert [DAEMON.predict_token_s(4)(4 * m, m) for m in (1, 4)] == pytest.approx([0.010, 0.016])
    assert [shared.predict_token_s(4)(4 * m, m) for m in (1, 4)] == pytest.approx([0.014, 0.026])


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
