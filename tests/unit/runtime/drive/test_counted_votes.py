"""Votes that are counted after every path, on simulated engines: the tree does not depend on when
results arrive."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from flashedge.runtime.drive.earlier_run import EarlierRun
from flashedge.runtime.drive.growth import Growth
from flashedge.runtime.request.early_exit import ExitOptions
from flashedge.runtime.request.request import Request
from flashedge.search.tree import ROOT, NodeStatus
from flashedge.types import NodeId
from scripts.lab.sim.pair import Faults
from tests.support.runtime_rig import (
    BEST,
    CONFIG,
    TIGHT,
    assert_nothing_left,
    drive,
    drive_alike,
    driver_of,
    sim_engines,
)

BY_SCORE = replace(BEST, n=16, early_exit=ExitOptions())
BY_VOTE = replace(BY_SCORE, strategy="self_consistency", selection="majority")
SPECS = pytest.mark.parametrize("spec", [BY_VOTE, BY_SCORE], ids=lambda spec: spec.strategy)


@SPECS
async def test_a_batch_of_any_size_gives_the_same_tree(spec: Request) -> None:
    saved = 0
    for seed in range(12):
        asked = replace(spec, seed=seed)
        for config in (replace(CONFIG, max_num_seqs=1), replace(CONFIG, max_num_seqs=3), TIGHT):
            story = await drive_alike(sim_engines(config=config), asked)
        drawn = [node.status for node in story.outcome.tree.children(ROOT)]
        assert set(drawn) <= {NodeStatus.COMPLETE, NodeStatus.CANCELLED}
        saved += asked.n - len(drawn)
    assert saved > 0


async def test_a_killed_engine_changes_nothing() -> None:
    for step in (3, 9, 15):
        faults = Faults(die_after_steps=frozenset({step}), restart_s=2.0)
        await drive_alike(sim_engines(generator=faults), BY_VOTE)


@SPECS
async def test_a_deadline_and_a_cancel_leave_nothing_open(spec: Request) -> None:
    cut = 0
    for moment in range(1, 30):
        engines = sim_engines()
        story = await drive(engines, replace(spec, deadline_s=0.004 * moment))
        cut += story.outcome.cut_by == "deadline"
        statuses = {node.status for node in story.outcome.tree.children(ROOT)}
        assert statuses <= {NodeStatus.COMPLETE, NodeStatus.CANCELLED}
        await assert_nothing_left(engines)
        run = asyncio.create_task(drive(engines, spec))
        await asyncio.sleep(0.004 * moment)
        run.cancel()
        await asyncio.wait({run})
        await assert_nothing_left(engines)
    assert cut > 5


async def test_a_run_that_goes_on_gives_the_same_tree() -> None:
    first = await drive(sim_engines(), BY_VOTE)
    earlier = EarlierRun.from_events(first.events)
    driver = driver_of(sim_engines(), BY_VOTE, lambda event: None, earlier)
    assert (await driver.run()) == first.outcome


def test_a_watched_node_is_told_of_once() -> None:
    growth, node = Growth(lambda ids: ""), NodeId(1)
    assert growth.watch({node: 3}) == []  # it has not begun
    growth.start(node)
    told = [growth.add(node, ids) for ids in ((1, 2), (3, 4), (5,))]
    assert told == [False, True, False]
    assert growth.watch({node: 5}) == [node]
    assert growth.watch({node: 7}) == []
    growth.start(node)  # the engine died: the path begins once more
    assert growth.add(node, (1, 2, 3, 4, 5, 6)) is False
    assert growth.add(node, (7,)) is True
