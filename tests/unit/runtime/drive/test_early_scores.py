"""Steps that are scored as they come: the same tree as level by level, whatever happens."""

from __future__ import annotations

import asyncio
import random
from dataclasses import replace

import pytest

from flashedge.events import EngineRestarted, Event, StepCompleted
from flashedge.runtime.drive.engines import Engines
from flashedge.runtime.request.request import Request
from flashedge.types import STRATEGIES
from scripts.lab.sim.pair import Faults, SimConfig
from tests.support.runtime_rig import (
    BEAM,
    CONFIG,
    TIGHT,
    assert_nothing_left,
    both,
    drive,
    drive_alike,
    driver_of,
    sim_engines,
)


def early(engines: Engines) -> Engines:
    """Each engine on a device of its own: neither waits for the other's steps."""
    for engine in both(engines):
        engine._gate = asyncio.Lock()
    return engines.switch(early_scores=True)


@pytest.mark.parametrize("strategy", sorted(STRATEGIES))
@pytest.mark.parametrize("config", [CONFIG, TIGHT], ids=["ample", "tight"])
async def test_the_tree_stays_the_same(strategy: str, config: SimConfig) -> None:
    spec = replace(BEAM, strategy=strategy, n=1 if strategy == "probed_cot" else 8)
    await drive_alike(early(sim_engines(config=config)), spec)


async def test_a_level_waits_for_its_last_scores_only() -> None:
    waited = []
    for on in (False, True):
        engines = early(sim_engines())
        driver = driver_of(engines.switch(early_scores=on), BEAM, lambda event: None)
        began = asyncio.get_running_loop().time()
        await driver.run()
        took_s = asyncio.get_running_loop().time() - began
        waited.append(driver.scoring.waiting.seconds)
        assert driver.generating.seconds + waited[-1] == pytest.approx(took_s)
    at_once_s, early_s = waited
    assert 0 < early_s < at_once_s


async def test_scores_begin_while_others_generate() -> None:
    engines, together = early(sim_engines()), 0

    def note(event: Event) -> None:
        nonlocal together
        if isinstance(event, StepCompleted):
            generator, verifier = both(engines)
            together += bool(generator._jobs) and bool(verifier._jobs)

    await driver_of(engines, BEAM, note).run()
    assert together > 4


async def test_nothing_is_scored_that_the_search_does_not_score() -> None:
    engines = early(sim_engines())
    await drive(engines, replace(BEAM, strategy="self_consistency"))
    assert (await engines.verifier.view()).blocks_used == 0


@pytest.mark.parametrize("which", ["generator", "verifier"])
async def test_a_level_survives_the_death_of_an_engine(which: str) -> None:
    faults = {which: Faults(die_after_steps=frozenset({1, 2, 7}), restart_s=3.0)}
    story = await drive_alike(early(sim_engines(**faults)), BEAM)
    told = [event.engine for event in story.list_events(EngineRestarted)]
    assert told == [which] * len(told) != []


async def test_a_run_cut_at_any_moment_leaves_nothing() -> None:
    expected = await drive(sim_engines(), BEAM)
    engines, draw, cut = early(sim_engines()), random.Random(3), 0
    began = asyncio.get_running_loop().time()
    await drive(engines, BEAM)
    whole_s = asyncio.get_running_loop().time() - began
    for turn in range(60):
        limit_s = draw.random() * whole_s
        if turn % 2:
            story = await drive(engines, replace(BEAM, deadline_s=limit_s))
            cut += story.outcome.cut_by == "deadline"
        else:
            cut += await cancelled(engines, BEAM, limit_s)
        await assert_nothing_left(engines)
    assert cut >= 50
    assert (await drive(engines, BEAM)).outcome == expected.outcome


async def cancelled(engines: Engines, spec: Request, after_s: float) -> bool:
    task = asyncio.create_task(drive(engines, spec))
    await asyncio.sleep(after_s)
    task.cancel()
    await asyncio.wait({task})
    return task.cancelled()
