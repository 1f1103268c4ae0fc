"""The programs of a load."""

from __future__ import annotations

import pytest

from flashedge.errors import RequestError
from flashedge.scheduling.programs.program import Kind
from scripts.lab.benchmark.load.arrivals import PoissonArrivals
from scripts.lab.benchmark.load.plan import parse_by_kind, parse_mix, plan_programs

HALVES = {Kind.CHAT: 0.5, Kind.SEARCH: 0.5}


def plan(mix: dict[Kind, float], seed: int = 0, clients: int = 3) -> tuple:  # type: ignore[type-arg]
    return plan_programs(
        PoissonArrivals(rate=10.0),
        mix,
        duration_s=100.0,
        problems=7,
        clients=clients,
        seed=seed,
    )


def test_programs_follow_the_mix_and_are_the_same_again() -> None:
    programs = plan(HALVES)
    assert programs == plan(HALVES)
    assert programs != plan(HALVES, seed=1)
    assert [p.number for p in programs] == list(range(len(programs)))
    chats = sum(p.kind is Kind.CHAT for p in programs)
    assert chats / len(programs) == pytest.approx(0.5, abs=0.05)
    assert {p.problem for p in programs} == set(range(7))
    assert {p.client for p in programs} == {"client-0", "client-1", "client-2"}
    assert len({p.seed for p in programs}) == len(programs)


def test_another_mix_or_number_of_clients_moves_no_arrival() -> None:
    times = [(p.arrived_s, p.problem) for p in plan(HALVES)]
    assert times == [(p.arrived_s, p.problem) for p in plan({Kind.BATCH: 1.0}, clients=1)]


def test_a_mix_in_words() -> None:
    assert parse_mix("chat=0.5, search=0.5") == HALVES
    assert parse_mix("batch=1") == {Kind.BATCH: 1.0}
    assert parse_by_kind("--slo", "chat=2,search=30") == {Kind.CHAT: 2.0, Kind.SEARCH: 30.0}
    for text in ("", "chat", "chat=x", "talk=1", "chat=0.5", "chat=0.5,chat=0.5", "chat=-1"):
        with pytest.raises(RequestError, match="mix"):
            parse_mix(text)
