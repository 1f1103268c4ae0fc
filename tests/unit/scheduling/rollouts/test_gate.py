"""When rollouts may be added."""

from __future__ import annotations

from typing import Any

import pytest

from flashedge.scheduling.rollouts.allocation import ByScore, Fixed
from flashedge.scheduling.rollouts.contender import Contender
from flashedge.scheduling.rollouts.gate import Gate, Opening
from flashedge.scheduling.rollouts.rollout_cost import RolloutCost
from tests.support.rollout_rig import make_contender, make_cost, make_load

FLAT = make_cost(0.0)


def open_gate(
    runs: list[Contender], cost: RolloutCost | None = FLAT, *, margin: float = 0.1, **load: Any
) -> Opening:
    return Gate(margin=margin).open(runs, ByScore(), make_load(**load), cost, 10.0)


def test_a_request_that_finds_no_room_closes_it() -> None:
    found = open_gate([make_contender("a"), make_contender("b")], has_waiting=True)
    assert (found.budget, found.reason) == (2, "requests wait in an engine")


def test_an_unmeasured_device_keeps_it_closed() -> None:
    assert open_gate([make_contender("a")], None).budget == 1


def test_a_flat_batch_lets_every_run_have_what_it_can_use() -> None:
    assert open_gate([make_contender("a", most=8), make_contender("b", most=3)]).budget == 11


def test_a_bystander_becomes_slower_by_the_margin_at_most() -> None:
    """A step is 10 ms and 0.1 ms a sequence. Beside 40 others and 4 sequences of one rollout it
    takes 14.4 ms; the margin of a tenth is 14 more sequences, which are 3 rollouts."""
    cost = make_cost(1e-4)
    assert open_gate([make_contender("a")], cost, others=40).budget == 1 + 3
    assert open_gate([make_contender("a")], cost, others=40, margin=0.05).budget == 2


def test_a_run_that_cannot_grow_counts_for_as_much_as_one_that_does() -> None:
    """Its own loss is weighed against the gain of the other."""
    cost = make_cost(2e-3)
    assert open_gate([make_contender("a")], cost).budget > 1
    beside = [make_contender("a"), make_contender("new", observed=0)]
    assert open_gate(beside, cost).budget == 2


@pytest.mark.parametrize("sequence_s", [0.0, 1e-4, 5e-4, 1e-3, 1e-2])
@pytest.mark.parametrize("count", [1, 3, 8])
def test_no_other_number_does_more_work(sequence_s: float, count: int) -> None:
    """Compared with each number in turn, at a cost by hand: 10 ms a step and so much a
    sequence."""
    runs = [make_contender(str(i)) for i in range(count)]
    gate = Gate()

    def do_work(budget: int) -> float:
        rollouts = ByScore().divide(runs, budget, 10.0).values()
        token_s = 0.01 + 4 * sum(rollouts) * sequence_s
        return sum(p**gate.efficiency for p in rollouts) / token_s

    found = gate.open(runs, ByScore(), make_load(), make_cost(sequence_s), 10.0).budget
    gains = {m: do_work(m) / do_work(count) for m in range(count, 8 * count + 1)}
    best = max(gains, key=lambda m: gains[m])
    if gains[best] > gate.least_gain:
        assert gains[found] == pytest.approx(gains[best])
    else:
        assert found == count


def test_a_gain_that_cancelled_rollouts_would_eat_up_does_not_count() -> None:
    """With eight rollouts a step takes 42 instead of 14 ms, and the run advances 5.28 times as
    fast: 1.76 times the work."""
    cost, run = make_cost(1e-3), make_contender("a")

    def find_budget(least_gain: float) -> int:
        gate = Gate(least_gain=least_gain)
        return gate.open([run], ByScore(), make_load(), cost, 10.0).budget

    assert find_budget(1.7) == 8
    assert find_budget(1.8) == 1


def test_a_lone_run_takes_what_makes_it_faster() -> None:
    """Where a step takes as long as its batch is large, rollouts side by side gain nothing."""
    steep = make_cost(1.0)
    assert open_gate([make_contender("a")], steep).budget == 1


def test_passes_of_the_verifier_count_where_it_shares_the_device() -> None:
    run = make_contender("a", most=16)
    apart, shared = make_cost(0.0), make_cost(0.0, pass_s=0.2)
    assert open_gate([run], shared, others=8).budget < open_gate([run], apart, others=8).budget


def test_the_free_memory_and_the_batch_are_limits() -> None:
    run = make_contender("a", path_tokens=500)
    short = open_gate([run], free_kv_tokens=1200.0)
    assert (short.budget, short.reason) == (1 + 2, "the KV memory is full")
    small = open_gate([run], max_sequences=12)
    assert (small.budget, small.reason) == (3, "the batch is full")


def test_the_serial_twin_is_never_boosted() -> None:
    found = Gate().open([make_contender("a")], Fixed(), make_load(), FLAT, 10.0)
    assert found.budget == 1
