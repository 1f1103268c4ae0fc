"""Many programs at once on a simulated card, in virtual time, by the product's own scheduling."""

from dataclasses import replace

import pytest

from flashedge.config import Config, load_config
from flashedge.optimizations import Features
from flashedge.runtime.drive.driver import Driver, Outcome
from flashedge.scheduling.programs.policies import POLICIES
from flashedge.scheduling.programs.program import Kind
from flashedge.search.tree import Tree
from scripts.lab.benchmark import virtual_run
from scripts.lab.benchmark.load.plan import Arrivals, PlannedProgram, plan_programs
from scripts.lab.benchmark.load.timings import End, Timings
from scripts.lab.benchmark.load.virtual_load import (
    VirtualLoad,
    build_virtual_load,
    measure_load_dispersion,
    run_virtual_load,
)
from scripts.lab.benchmark.simulate import Question, build_bench

QUESTION = Question(
    gpu="rtx4090", pair="math-1.5b+skywork-1.5b", strategy="beam", n=4, problems=8, share=0.5
)
MIX = {Kind.CHAT: 0.7, Kind.SEARCH: 0.3}


def plan(rate: float, duration_s: float) -> tuple[PlannedProgram, ...]:
    return plan_programs(Arrivals(rate=rate), MIX, duration_s=duration_s, problems=8, seed=1)


@pytest.fixture(scope="module")
def load() -> VirtualLoad:
    config = load_config(environ={})
    return build_virtual_load(build_bench(QUESTION, config), config)


def test_chats_and_searches_run_side_by_side(load: VirtualLoad) -> None:
    programs = plan(4.0, 3.0)
    records = run_virtual_load(load, programs)
    assert [r.number for r in records] == [p.number for p in programs]
    assert {r.end for r in records} == {End.FINISHED}
    assert {r.kind for r in records} == {Kind.CHAT, Kind.SEARCH}
    timings = Timings.of_records(records)
    assert len(timings) == len(records)  # all have times and output
    assert (timings.wait_s >= 0).all()
    assert (timings.wait_s < timings.ttft_s).all()
    assert (timings.ttft_s <= timings.latency_s).all()
    assert {r.late_s for r in records} == {0}
    chats = Timings.of_records(r for r in records if r.kind is Kind.CHAT)
    assert chats.wait_s.max() < 1.0, "they need no turn of the searches"
    assert run_virtual_load(load, programs) == records  # nothing is random


@pytest.fixture
def trees(monkeypatch: pytest.MonkeyPatch) -> dict[str, Tree]:
    """The tree of each search that is served meanwhile, by its program."""
    found: dict[str, Tree] = {}

    class KeepingDriver(Driver):
        async def run(self) -> Outcome:
            outcome = await super().run()
            found[str(self._engines.program)] = outcome.tree
            return outcome

    monkeypatch.setattr(virtual_run, "Driver", KeepingDriver)
    return found


def test_a_run_has_the_same_tree_under_every_policy_as_alone(
    load: VirtualLoad, trees: dict[str, Tree]
) -> None:
    programs = plan(20.0, 0.6)
    for program in programs:
        if program.kind is Kind.SEARCH:
            run_virtual_load(load, (program,))
    alone = dict(trees)
    assert len(alone) >= 4
    for number, policy in enumerate(POLICIES):
        settings = {"scheduling_policy": policy, "features": Features(gang=number % 2 == 0)}
        config: Config = replace(load.config, **settings, max_running=3)  # type: ignore[arg-type]
        trees.clear()
        run_virtual_load(replace(load, config=config), programs)
        assert trees == alone, policy


def test_a_full_queue_refuses_searches(load: VirtualLoad) -> None:
    few = replace(load, config=replace(load.config, queue_limit=1, max_running=1))
    arrivals, mix = Arrivals(times_s=(0.0, 0.1, 0.2, 0.3)), {Kind.SEARCH: 1.0}
    programs = plan_programs(arrivals, mix, duration_s=1.0, problems=8)
    ends = [record.end for record in run_virtual_load(few, programs)]
    assert ends == [End.FINISHED, End.FINISHED, End.REFUSED, End.REFUSED]


def test_the_dispersion_of_the_load_is_known(load: VirtualLoad) -> None:
    found = measure_load_dispersion(load)
    assert found["chat"].within_cv > 2 * found["search"].within_cv > 0.1
    assert found["chat"].mean_tokens > 200
    assert set(load.forecasts) == {*load.search_rows, *load.chat_rows}
