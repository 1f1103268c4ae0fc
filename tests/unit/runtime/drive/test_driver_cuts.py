"""The driver cut short by the clock, a budget or a cancel: nothing is left in the engines."""

from __future__ import annotations

import asyncio
import random
from dataclasses import replace

import pytest

from flashedge.events import EarlyExit, Event, NodeScored, NodesExpanded, StepCompleted
from flashedge.runtime.drive.engines import Engines
from flashedge.runtime.request.request import Request
from flashedge.search.tree import ROOT, NodeStatus
from scripts.lab.sim.pair import Faults
from tests.support.runtime_rig import (
    BEAM,
    BEST,
    TIGHT,
    Story,
    assert_nothing_left,
    drive,
    driver_of,
    folded,
    nodes_of,
    sim_engines,
)
from tests.unit.runtime.drive.test_strategies import every_strategy, spec_of

SPECS = pytest.mark.parametrize("spec", [BEAM, BEST], ids=lambda spec: spec.strategy)


# ---------------------------------------------------------------- bounds


def assert_cut(story: Story, spec: Request) -> None:
    """Every node has a final status; the path shown is there."""
    tree, finish = story.outcome.tree, story.outcome.finish
    assert folded(story.events) == nodes_of(tree, spec)
    over = {NodeStatus.ACTIVE, NodeStatus.PRUNED, NodeStatus.DUPLICATE, NodeStatus.COMPLETE}
    for node in tree.nodes.values():
        assert node.status in over | {NodeStatus.CANCELLED}
        assert node.segment is None or node.status is not NodeStatus.CANCELLED
    assert finish.choice == ROOT or tree[finish.choice].segment is not None


@every_strategy
async def test_a_deadline_cuts_the_run(strategy: str) -> None:
    """At any moment: the answer is made of what is there, and the engines are left at once."""
    cut = answered = 0
    for i in range(30):
        engines = sim_engines()
        spec = spec_of(strategy, deadline_s=0.004 * (i + 1))
        story = await drive(engines, spec)
        assert_cut(story, spec)
        assert bool(story.list_events(EarlyExit)) == (story.outcome.cut_by is not None)
        await assert_nothing_left(engines)
        cut += story.outcome.cut_by == "deadline"
        answered += (story.outcome.cut_by == "deadline") and story.outcome.finish.answer is not None
    assert cut > 5
    assert answered or strategy != "beam"


async def test_a_deadline_holds_while_the_engine_restarts() -> None:
    faults = Faults(die_after_steps=frozenset({12}), restart_s=50.0)
    engines = sim_engines(generator=faults)
    story = await drive(engines, replace(BEAM, deadline_s=1.0))
    assert story.outcome.cut_by == "deadline"
    assert asyncio.get_running_loop().time() == pytest.approx(1.0)
    assert_cut(story, BEAM)
    assert story.outcome.finish.choice != ROOT


async def test_the_deadline_does_not_bind_a_run_that_ends() -> None:
    free = await drive(sim_engines(), BEAM)
    bounded = await drive(sim_engines(), replace(BEAM, deadline_s=1e5))
    assert bounded.outcome == free.outcome


@pytest.mark.parametrize("budget", [1, 60, 150])
async def test_a_token_budget_ends_at_a_level(budget: int) -> None:
    free = await drive(sim_engines(), BEAM)
    spec = replace(BEAM, token_budget=budget)
    engines = sim_engines()
    story = await drive(engines, spec)
    tree = story.outcome.tree
    deepest = max(node.depth for node in tree.nodes.values())
    before = sum(
        len(n.segment.token_ids) for n in tree.nodes.values() if n.depth < deepest and n.segment
    )
    assert before < budget <= tree.committed_tokens < free.outcome.tree.committed_tokens
    assert story.outcome.cut_by != "deadline"
    for node in tree.nodes.values():
        assert node.segment == free.outcome.tree[node.id].segment
    assert_cut(story, spec)
    await assert_nothing_left(engines)


# ---------------------------------------------------------------- cancel


async def cancel_after(engines: Engines, spec: Request, delay_s: float) -> bool:
    """Whether the run was still under way."""
    task = asyncio.create_task(drive(engines, spec))
    await asyncio.sleep(delay_s)
    task.cancel()
    try:
        await task
    except asyncio.CancelledError:
        return True
    return False


@SPECS
async def test_a_cancelled_run_leaves_nothing(spec: Request) -> None:
    expected = await drive(sim_engines(), spec)
    engines = sim_engines()
    began = asyncio.get_running_loop().time()
    await drive(engines, spec)
    whole_s = asyncio.get_running_loop().time() - began
    draw, cancelled = random.Random(5), 0
    for _ in range(60):
        cancelled += await cancel_after(engines, spec, draw.random() * whole_s)
        await assert_nothing_left(engines)
    assert cancelled >= 50
    assert (await drive(engines, spec)).outcome == expected.outcome


async def test_a_run_is_cancelled_while_the_engine_restarts() -> None:
    engines = sim_engines(generator=Faults(die_after_steps=frozenset({3}), restart_s=9.0))
    assert await cancel_after(engines, BEAM, 4.0)
    await assert_nothing_left(engines)


async def test_a_cancelled_run_does_not_touch_its_neighbour() -> None:
    expected = await drive(sim_engines(), BEAM)
    engines = sim_engines(config=TIGHT)
    beside = asyncio.create_task(drive(engines, BEAM))
    for seed in range(4):
        assert await cancel_after(engines, replace(BEST, seed=seed), 0.012)
    assert (await beside).outcome == expected.outcome
    await assert_nothing_left(engines)


async def test_a_follower_receives_what_happened_before_the_cancel() -> None:
    events: list[Event] = []
    task = asyncio.create_task(driver_of(sim_engines(), BEAM, events.append).run())
    while not any(isinstance(event, NodeScored) for event in events):  # noqa: ASYNC110
        await asyncio.sleep(0.001)
    task.cancel()
    await asyncio.wait({task})
    told = len(events)
    assert {NodesExpanded, StepCompleted, NodeScored} <= set(map(type, events))
    await asyncio.sleep(5.0)
    assert len(events) == told
