"""What arrives in a load, and when: seeded, as dense as told, and read from files."""

from pathlib import Path
from random import Random

import numpy as np
import pytest

from flashedge.errors import ConfigError, RequestError
from flashedge.scheduling.programs.program import Kind
from scripts.lab.benchmark.load.plan import (
    Arrivals,
    PlannedProgram,
    choose_arrivals,
    parse_by_kind,
    parse_mix,
    plan_programs,
    read_arrivals,
)


def test_poisson_arrivals_have_the_rate_and_exponential_gaps() -> None:
    times = Arrivals(rate=5.0).draw(2000.0, Random(1))
    assert len(times) == pytest.approx(10_000, rel=0.03)
    assert 0 <= times[0] < times[-1] < 2000.0
    assert list(times) == sorted(times)
    gaps = np.diff(times)
    assert gaps.mean() == pytest.approx(0.2, rel=0.03)
    assert gaps.std() == pytest.approx(gaps.mean(), rel=0.05)  # as of an exponential distribution


def test_three_times_as_many_arrive_in_a_burst() -> None:
    process = Arrivals(rate=4.0, is_bursty=True)
    times = process.draw(1000.0, Random(5))
    assert times == process.draw(1000.0, Random(5)) != process.draw(1000.0, Random(6))
    assert list(times) == sorted(times)
    counts = np.histogram(times, [0, 400, 600, 1000])[0]
    assert counts.sum() == len(times)
    assert counts / (400, 200, 400) == pytest.approx([4.0, 12.0, 4.0], rel=0.08)


def test_arrivals_by_name_and_from_a_file(tmp_path: Path) -> None:
    assert choose_arrivals("poisson", 2.0) == Arrivals(rate=2.0)
    assert choose_arrivals("bursty", 2.0) == Arrivals(rate=2.0, is_bursty=True)
    file = tmp_path / "times.txt"
    file.write_text("# seconds\n2.5\n\n0\n 1e1 \n")
    found = choose_arrivals(str(file), None)
    assert found == Arrivals(times_s=(0.0, 2.5, 10.0))
    assert found.draw(5.0, Random(0)) == (0.0, 2.5)
    for name, rate in (("poisson", None), ("poisson", 0.0), ("bursty", -1.0), (str(file), 2.0)):
        with pytest.raises(RequestError):
            choose_arrivals(name, rate)
    bad = {"1\nsoon\n": "line 2: 'soon'", "-1\n": "'-1' is no time", "": "no arr"}
    for text, said in bad.items():
        file.write_text(text)
        with pytest.raises(ConfigError, match=said):
            read_arrivals(file)
    with pytest.raises(ConfigError, match="can't read"):
        read_arrivals(tmp_path / "none")


HALVES = {Kind.CHAT: 0.5, Kind.SEARCH: 0.5}


def plan(mix: dict[Kind, float], **more: int) -> tuple[PlannedProgram, ...]:
    given = {"problems": 7, "clients": 3, **more}
    return plan_programs(Arrivals(rate=10.0), mix, duration_s=100.0, **given)


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
    # another mix or number of clients moves no arrival
    other = plan({Kind.BATCH: 1.0}, clients=1)
    assert [(p.arrived_s, p.problem) for p in programs] == [(p.arrived_s, p.problem) for p in other]


def test_a_mix_in_words() -> None:
    assert parse_mix("chat=0.5, search=0.5") == HALVES
    assert parse_mix("batch=1") == {Kind.BATCH: 1.0}
    assert parse_by_kind("--slo", "chat=2,search=30") == {Kind.CHAT: 2.0, Kind.SEARCH: 30.0}
    for text in ("", "chat", "chat=x", "talk=1", "chat=0.5", "chat=0.5,chat=0.5", "chat=-1"):
        with pytest.raises(RequestError, match="mix"):
            parse_mix(text)
