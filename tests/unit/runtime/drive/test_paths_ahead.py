"""Groups that are drawn ahead: the same tree, sooner, and nothing left behind."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from flashedge.optimizations import Optimizations
from flashedge.runtime.drive.earlier_run import EarlierRun
from flashedge.runtime.request.early_exit import ExitOptions
from flashedge.runtime.request.spec import RunSpec
from flashedge.scheduling.programs.program import Program
from flashedge.search.tree import ROOT
from scripts.lab.sim.clock import VirtualTimePolicy
from scripts.lab.sim.pair import Faults
from tests.support.paths_ahead_rig import SURE, UNSURE, AheadRig
from tests.support.runtime_rig import BEST, assert_nothing_left, folded, nodes_of, sim_engines

BY_VOTE = replace(BEST, strategy="self_consistency", selection="majority", early_exit=UNSURE)
BY_SCORE = replace(BEST, early_exit=UNSURE)


@pytest.fixture
def event_loop_policy() -> VirtualTimePolicy:
    return VirtualTimePolicy()


@pytest.mark.parametrize("spec", [BY_VOTE, BY_SCORE], ids=lambda spec: spec.strategy)
@pytest.mark.parametrize("policy", ["static", "every_5", "every_step"])
async def test_the_tree_is_the_same_and_there_sooner(spec: RunSpec, policy: str) -> None:
    spec = replace(spec, early_exit=replace(UNSURE, policy=policy))
    plain, ahead = AheadRig(spec, on=False), AheadRig(spec)
    expected, found = await plain.run(), await ahead.run()
    assert found == expected
    assert len(found.tree.children(ROOT)) == spec.n
    assert folded(ahead.events) == nodes_of(found.tree, spec)
    assert ahead.took_s < plain.took_s
    assert ahead.driver.speculation.kept_tokens > 0
    assert ahead.driver.speculation.wasted_tokens == 0
    assert plain.driver.speculation.drawn_tokens == 0
    await assert_nothing_left(ahead.engines)


async def test_a_search_that_ends_leaves_what_was_drawn_ahead() -> None:
    spec = replace(BY_VOTE, early_exit=SURE)
    plain, ahead = AheadRig(spec, on=False), AheadRig(spec)
    assert await ahead.run() == await plain.run()
    usage = ahead.driver.speculation
    assert usage.kept_tokens == 0
    assert usage.wasted_tokens > 0
    assert ahead.room.continuations.chance == pytest.approx(1 / 3)
    await assert_nothing_left(ahead.engines)


async def test_whether_searches_go_on_is_learned_also_where_nothing_is_drawn_ahead() -> None:
    ahead = AheadRig(BY_VOTE, capacity=None)
    await ahead.run()
    assert ahead.driver.speculation.drawn_tokens == 0
    assert ahead.room.continuations.chance == pytest.approx(2 / 3)


@pytest.mark.parametrize(
    "spec",
    [replace(BY_VOTE, early_exit=None), replace(BEST, strategy="beam", early_exit=UNSURE)],
    ids=["no early exit", "levels"],
)
async def test_a_search_without_groups_draws_nothing_ahead(spec: RunSpec) -> None:
    ahead = AheadRig(spec)
    await ahead.run()
    assert ahead.room.continuations.chance == pytest.approx(0.5)
    await assert_nothing_left(ahead.engines)


def test_the_baseline_draws_nothing_ahead() -> None:
    assert not Optimizations.none().paths_ahead


async def test_a_run_that_continues_another_asks_that_one_first() -> None:
    first = AheadRig(BY_VOTE)
    expected = await first.run()
    earlier = EarlierRun.from_events(first.events)
    again = AheadRig(BY_VOTE, earlier=earlier)
    assert await again.run() == expected
    assert again.driver.speculation.drawn_tokens == 0


async def test_what_is_dropped_for_a_program_that_starts_is_drawn_when_its_turn_comes() -> None:
    expected = await AheadRig(BY_VOTE, on=False).run()
    ahead = AheadRig(BY_VOTE)
    run = asyncio.create_task(ahead.run())
    await asyncio.sleep(0.003)
    ahead.programs.append(Program(key="other", arrived_s=0.0, started_s=0.0, max_tokens=4 * 4096))
    ahead.room.make_room()
    assert await run == expected
    usage = ahead.driver.speculation
    assert usage.kept_tokens == 0
    assert usage.wasted_tokens > 0
    await assert_nothing_left(ahead.engines)


async def test_paths_that_a_dead_engine_took_along_are_drawn_again() -> None:
    expected = await AheadRig(BY_VOTE, on=False).run()
    for step in range(1, 30):
        dies = Faults(die_after_steps=frozenset({step}), restart_s=1.0)
        ahead = AheadRig(BY_VOTE, engines=sim_engines(generator=dies))
        assert await ahead.run() == expected
        await assert_nothing_left(ahead.engines)


async def test_a_failed_request_is_sent_again_by_its_node() -> None:
    expected = await AheadRig(BY_VOTE, on=False).run()
    for request in range(8):  # three of the first group, five ahead of the second
        fails = Faults(fail_requests=frozenset({request}))
        ahead = AheadRig(BY_VOTE, engines=sim_engines(generator=fails))
        assert await ahead.run() == expected
        await assert_nothing_left(ahead.engines)


async def test_paths_that_the_search_does_not_ask_for_are_stopped_at_once() -> None:
    """The unsure policy would draw all of the others; at its real certainty it wants two more."""
    curve = ((0.0, 8), (0.001, 5))
    exits = ExitOptions(policy="initial_curve", detect=3, thresholds={"entropy": 1.0}, curve=curve)
    spec = replace(BY_VOTE, early_exit=exits)
    expected = await AheadRig(spec, on=False).run()
    ahead = AheadRig(spec)
    assert await ahead.run() == expected
    assert len(expected.tree.children(ROOT)) == 5
    usage = ahead.driver.speculation
    assert usage.kept_steps == 2
    assert usage.wasted_tokens > 0
    await assert_nothing_left(ahead.engines)


async def test_a_deadline_says_nothing_about_whether_searches_go_on() -> None:
    ahead = AheadRig(replace(BY_VOTE, deadline_s=0.003))
    await ahead.run()
    assert ahead.room.continuations.chance == pytest.approx(0.5)


async def test_a_run_cancelled_at_any_moment_leaves_nothing() -> None:
    for moment in range(20):
        ahead = AheadRig(BY_VOTE)
        run = asyncio.create_task(ahead.run())
        await asyncio.sleep(0.002 * moment)
        run.cancel()
        await asyncio.wait({run})
        assert not ahead.room._groups
        await assert_nothing_left(ahead.engines)


async def test_a_deadline_cuts_what_is_drawn_ahead() -> None:
    for moment in range(1, 20):
        ahead = AheadRig(replace(BY_VOTE, deadline_s=0.003 * moment))
        await ahead.run()
        assert not ahead.room._groups
        await assert_nothing_left(ahead.engines)
