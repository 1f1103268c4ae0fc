"""Groups that are drawn ahead on the real engines: the same tree, also through a kill, and nothing
left."""

from __future__ import annotations

import asyncio
import os
import signal
from dataclasses import replace

import pytest

from flashedge.events import EngineRestarted
from flashedge.runtime.drive.engines import Engines
from flashedge.runtime.request.spec import RunSpec
from tests.engine.test_driver_on_vllm import BEST, EASY, HARD, assert_idle
from tests.support.paths_ahead_rig import UNSURE, AheadRig

pytestmark = pytest.mark.asyncio(loop_scope="session")

BY_SCORE = replace(BEST, early_exit=UNSURE)
BY_VOTE = replace(BY_SCORE, strategy="self_consistency", selection="majority")


@pytest.mark.parametrize("spec", [BY_VOTE, BY_SCORE], ids=lambda spec: spec.strategy)
async def test_the_tree_is_the_same(engines: Engines, spec: RunSpec) -> None:
    kept = wasted = 0
    for problem in (*EASY[:3], *HARD[:3]):
        asked = replace(spec, problem=problem)
        plain, ahead = (AheadRig(asked, on=on, engines=engines) for on in (False, True))
        expected = await plain.run()
        assert await ahead.run() == expected
        kept += ahead.driver.speculation.kept_tokens
        wasted += ahead.driver.speculation.wasted_tokens
        await assert_idle(engines)
    assert kept
    assert wasted, "some of these searches end after their first group"


async def test_paths_that_a_killed_engine_took_along_are_drawn_again(engines: Engines) -> None:
    spec = replace(BY_VOTE, problem=HARD[1])
    expected = await AheadRig(spec, on=False, engines=engines).run()
    rig = AheadRig(spec, engines=engines)
    run = asyncio.create_task(rig.run())
    await asyncio.sleep(0.15)
    pid = engines.generator.health().pid
    assert pid is not None
    os.kill(pid, signal.SIGKILL)
    assert await run == expected
    assert any(isinstance(event, EngineRestarted) for event in rig.events)
    await assert_idle(engines)


async def test_a_cancelled_run_leaves_nothing(engines: Engines) -> None:
    for moment in range(6):
        rig = AheadRig(replace(BY_VOTE, problem=HARD[2]), engines=engines)
        run = asyncio.create_task(rig.run())
        await asyncio.sleep(0.1 * moment)
        run.cancel()
        await asyncio.wait({run})
        await assert_idle(engines)
