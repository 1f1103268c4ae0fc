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


@pytest.mark.parametrize(
    ("load", "reason"),
    [
        ({"queued": 1}, "in the queue"),
        ({"waiting": 1}, "in an engine"),
        ({"is_after_waiting": True}, "the last minute"),
    ],
)
def test_who_waits_closes_it(load: dict[str, Any], reason: str) -> None:
    found = open_gate([make_contender("a"), make_contender("b")], **load)
    assert found.budget == 2
    assert reason in found.reason


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


def test_a_run_that_cannot_grow_is_a_bystander() -> None:
    cost = make_cost(1e-4)
    alone = open_gate([make_contender("a")], cost).budget
    beside = open_gate([make_contender("a"), make_contender("new", observed=0)], cost)
    assert beside.budget < alone + 1


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
